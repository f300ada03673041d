//! The page around a report: its head, first screen, sections and foot.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figure::colour_rules;

const STYLE: &str = include_str!("style.css");

/// Sorts tables; the page is complete without it.
const SCRIPT: &str = include_str!("sort.js");

/// Forbids the browser to load anything: styles and scripts are inside, the icon is empty.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      img-src data:; base-uri 'none'; form-action 'none'";

/// A page before it is laid out.
#[derive(Debug)]
pub(crate) struct Page {
    /// The run, in a line.
    pub(crate) title: String,
    /// A line below it: configuration in a few words.
    pub(crate) subtitle: String,
    /// A sentence; whether it is good news.
    pub(crate) verdict: (String, Mood),
    /// Three figures: value, name.
    pub(crate) tiles: Vec<(String, String)>,
    /// Headings and their contents.
    pub(crate) sections: Vec<(String, Markup)>,
    /// Names and values at the foot: machine, command, seed, version.
    pub(crate) foot: Vec<(String, String)>,
}

/// Tone of a verdict, shown by a word and a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Good,
    Bad,
    Neutral,
}

impl Mood {
    fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Bad => "bad",
            Self::Neutral => "neutral",
        }
    }
}

impl Page {
    /// Returns the whole file, with `data` inside.
    pub(crate) fn html(&self, data: &str) -> String {
        // Inside a script element, only `<` can end it or begin a comment.
        let data = data.replace('<', "\\u003c");
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    // No request leaves the page, whatever its data holds.
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content={ "highwater " (env!("CARGO_PKG_VERSION")) };
                    // Without an icon of its own a browser asks the server for one.
                    link rel="icon" href="data:,";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) (PreEscaped(colour_rules())) }
                }
                body {
                    main {
                        header {
                            p class="brand" { "highwater" }
                            h1 { (self.title) }
                            p class="subtitle" { (self.subtitle) }
                            p class={ "verdict " (self.verdict.1.name()) } { (self.verdict.0) }
                            ul class="tiles" {
                                @for (value, name) in &self.tiles {
                                    li { strong { (value) } span { (name) } }
                                }
                            }
                        }
                        @for (heading, content) in &self.sections {
                            section { h2 { (heading) } (content) }
                        }
                    }
                    footer {
                        dl {
                            @for (name, value) in &self.foot {
                                div { dt { (name) } dd { (value) } }
                            }
                        }
                    }
                    script type="application/json" id=(super::DATA_ID) { (PreEscaped(data)) }
                    script { (PreEscaped(SCRIPT)) }
                }
            }
        };
        page.into_string()
    }
}

/// Returns figures beside each other, as many as fit.
pub(crate) fn grid(figures: impl IntoIterator<Item = Markup>) -> Markup {
    html! {
        div class="grid" { @for figure in figures { (figure) } }
    }
}
