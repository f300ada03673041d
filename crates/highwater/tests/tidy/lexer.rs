//! A minimal Rust lexer for text rules: it separates code, comments and the contents of literals,
//! finds the paths that code names (use trees expanded), and marks the lines of test code.
//!
//! Invariant: the three texts of [`Lexed`] have the length and the line breaks of the source; each
//! byte of the source is in exactly one of them, and the others hold a space there.

/// A source text, split into three.
#[derive(Debug)]
pub(crate) struct Lexed {
    /// Code, with the quotes of literals.
    pub(crate) code: String,
    /// Comments, with their slashes.
    pub(crate) comments: String,
    /// Contents of string and character literals, without the quotes.
    pub(crate) strings: String,
}

/// A token of code: a word, the separator of paths, or a single other character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// An identifier, a keyword or a number.
    Word(&'a str),
    /// `::`
    Separator,
    /// Any other character.
    Other(u8),
}

#[derive(Clone, Copy)]
enum Part {
    Code,
    Comment,
    String,
}

/// The three texts while they are being filled.
struct Parts<'a> {
    source: &'a [u8],
    texts: [Vec<u8>; 3],
}

impl Parts<'_> {
    fn copy(&mut self, part: Part, from: usize, to: usize) {
        self.texts[part as usize][from..to].copy_from_slice(&self.source[from..to]);
    }
}

/// Splits `source`.
pub(crate) fn lex(source: &str) -> Lexed {
    let bytes = source.as_bytes();
    let blank: Vec<u8> = bytes
        .iter()
        .map(|&byte| if byte == b'\n' { b'\n' } else { b' ' })
        .collect();
    let mut parts = Parts {
        source: bytes,
        texts: [blank.clone(), blank.clone(), blank],
    };
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (part, opening, closing, end) = if rest.starts_with(b"//") {
            let length = rest.iter().position(|&byte| byte == b'\n');
            (Part::Comment, 0, 0, at + length.unwrap_or(rest.len()))
        } else if rest.starts_with(b"/*") {
            (Part::Comment, 0, 0, at + block_comment(rest))
        } else if let Some((opening, closing, length)) = string(rest) {
            (Part::String, opening, closing, at + length)
        } else if let Some(length) = character(rest) {
            (Part::String, 1, 1, at + length)
        } else {
            (Part::Code, 0, 0, at + word_length(rest).max(1))
        };
        parts.copy(Part::Code, at, at + opening);
        parts.copy(part, at + opening, end - closing);
        parts.copy(Part::Code, end - closing, end);
        at = end;
    }
    let [code, comments, strings] = parts.texts.map(|text| String::from_utf8(text).unwrap());
    Lexed {
        code,
        comments,
        strings,
    }
}

pub(crate) const fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn word_length(rest: &[u8]) -> usize {
    rest.iter()
        .position(|&byte| !is_word_byte(byte))
        .unwrap_or(rest.len())
}

/// Returns the length of the block comment (possibly nested) at the start of `rest`.
fn block_comment(rest: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// If `rest` begins with a string literal, returns the lengths of its opening, its closing, and the
/// whole.
fn string(rest: &[u8]) -> Option<(usize, usize, usize)> {
    let mut at = 0;
    if matches!(rest.first(), Some(b'b' | b'c')) {
        at += 1;
    }
    let is_raw = rest.get(at) == Some(&b'r');
    let mut hashes = 0;
    if is_raw {
        at += 1;
        hashes = rest[at..].iter().take_while(|&&byte| byte == b'#').count();
        at += hashes;
    }
    if rest.get(at) != Some(&b'"') {
        return None;
    }
    let opening = at + 1;
    at = opening;
    while at < rest.len() {
        if !is_raw && rest[at] == b'\\' {
            at += 2;
        } else if rest[at] == b'"'
            && rest[at + 1..].len() >= hashes
            && rest[at + 1..at + 1 + hashes]
                .iter()
                .all(|&byte| byte == b'#')
        {
            return Some((opening, 1 + hashes, at + 1 + hashes));
        } else {
            at += 1;
        }
    }
    Some((opening, 0, rest.len()))
}

/// Returns the length of the character literal at the start of `rest`; a lifetime is none.
fn character(rest: &[u8]) -> Option<usize> {
    if rest.first() != Some(&b'\'') {
        return None;
    }
    if rest.get(1) == Some(&b'\\') {
        let closing = rest.iter().skip(3).position(|&byte| byte == b'\'')?;
        return Some(closing + 4);
    }
    let width = match *rest.get(1)? {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    };
    (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
}

impl Lexed {
    /// Returns the code as tokens, each with its offset. Numbers count as words.
    pub(crate) fn tokens(&self) -> Vec<(usize, Token<'_>)> {
        let bytes = self.code.as_bytes();
        let (mut tokens, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let length = word_length(&bytes[at..]);
            if length > 0 {
                tokens.push((at, Token::Word(&self.code[at..at + length])));
                at += length;
            } else if bytes[at..].starts_with(b"::") {
                tokens.push((at, Token::Separator));
                at += 2;
            } else {
                if !bytes[at].is_ascii_whitespace() {
                    tokens.push((at, Token::Other(bytes[at])));
                }
                at += 1;
            }
        }
        tokens
    }

    /// Returns every word of the code with its offset.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        self.tokens().into_iter().filter_map(|(at, token)| {
            if let Token::Word(word) = token {
                Some((at, word))
            } else {
                None
            }
        })
    }

    /// Returns every path of two or more segments that the code names, with the offset of its last
    /// segment; use trees are expanded.
    pub(crate) fn paths(&self) -> Vec<(usize, Vec<&str>)> {
        let tokens = self.tokens();
        let (mut found, mut at) = (Vec::new(), 0);
        while at < tokens.len() {
            let starts = matches!(tokens[at].1, Token::Word(_))
                && matches!(tokens.get(at + 1), Some((_, Token::Separator)));
            at = if starts {
                path(&tokens, at, Vec::new(), &mut found)
            } else {
                at + 1
            };
        }
        found
    }

    /// Returns the line, counted from 1, of the byte at `offset`.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        line_of(&self.code, offset)
    }

    /// Returns for each line whether it is under `cfg(test)`; the first line is at index 1.
    pub(crate) fn test_lines(&self) -> Vec<bool> {
        let code = self.code.as_bytes();
        let mut is_test = vec![false; self.code.lines().count() + 2];
        for (opening, _) in self.code.match_indices("[cfg(") {
            let attribute_end = balanced_end(code, opening);
            let condition = &self.code[opening + "[cfg(".len()..attribute_end];
            if !requires_test(condition) {
                continue;
            }
            let is_inner = code[..opening].ends_with(b"#!");
            let end = if is_inner {
                code.len()
            } else {
                item_end(code, attribute_end)
            };
            let first = if is_inner { 1 } else { self.line_of(opening) };
            is_test[first..=self.line_of(end.saturating_sub(1))].fill(true);
        }
        is_test
    }
}

/// Returns the line, counted from 1, of the byte at `offset` of `text`.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// Reads the path at `at`, adds its leaves to `found`, and returns where it ends.
fn path<'a>(
    tokens: &[(usize, Token<'a>)],
    mut at: usize,
    mut segments: Vec<&'a str>,
    found: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    loop {
        match tokens[at].1 {
            // `use a::{self}` names `a`.
            Token::Word("self") if !segments.is_empty() => {}
            Token::Word(word) => segments.push(word),
            _ => segments.push("*"),
        }
        let leaf = tokens[at].0;
        at += 1;
        if !matches!(tokens.get(at), Some((_, Token::Separator))) {
            found.push((leaf, segments));
            return at;
        }
        at += 1;
        match tokens.get(at) {
            Some((_, Token::Word(_) | Token::Other(b'*'))) => {}
            Some((_, Token::Other(b'{'))) => return group(tokens, at + 1, &segments, found),
            _ => {
                found.push((leaf, segments));
                return at;
            }
        }
    }
}

/// Reads the rest of a braced group of a use tree, and returns where it ends.
fn group<'a>(
    tokens: &[(usize, Token<'a>)],
    mut at: usize,
    prefix: &[&'a str],
    found: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    while at < tokens.len() {
        match tokens[at].1 {
            Token::Other(b'}') => return at + 1,
            Token::Word("as") => at += 2,
            Token::Word(_) | Token::Other(b'*') => at = path(tokens, at, prefix.to_vec(), found),
            _ => at += 1,
        }
    }
    at
}

/// Returns whether a `cfg` condition holds in test builds only.
fn requires_test(condition: &str) -> bool {
    let compact: String = condition.split_whitespace().collect();
    let names_test = compact
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .any(|word| word == "test");
    names_test && !compact.contains("not(test") && !compact.contains("any(")
}

/// Returns the offset after the bracket that closes the one at `opening`.
fn balanced_end(code: &[u8], opening: usize) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.iter().enumerate().skip(opening) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Returns the offset after the item that begins at or after `at`: its semicolon or its closing
/// brace.
fn item_end(code: &[u8], mut at: usize) -> usize {
    while at < code.len() {
        match code[at] {
            b';' => return at + 1,
            b'{' => return balanced_end(code, at),
            b'(' | b'[' => at = balanced_end(code, at),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(source: &str) -> String {
        lex(source).code
    }

    #[test]
    fn comments_strings_and_code_are_told_apart() {
        let lexed = lex("let a = \"x // y\"; // z \"q\"\nlet b = 1; /* /* in */ out */ let c;");
        let comment = " ".repeat("/* /* in */ out */".len());
        let expected = format!("let a = \"      \";         \nlet b = 1; {comment} let c;");
        assert_eq!(lexed.code, expected);
        assert!(lexed.comments.contains("// z \"q\""));
        assert!(lexed.comments.contains("/* /* in */ out */"));
        assert_eq!(lexed.strings.trim(), "x // y");
    }

    #[test]
    fn every_byte_stands_in_exactly_one_text() {
        let source = include_str!("lexer.rs");
        let lexed = lex(source);
        for (at, &byte) in source.as_bytes().iter().enumerate() {
            let texts = [&lexed.code, &lexed.comments, &lexed.strings];
            let holders = texts
                .iter()
                .filter(|text| text.as_bytes()[at] == byte)
                .count();
            let expected = if byte == b'\n' || byte == b' ' { 3 } else { 1 };
            assert_eq!(holders, expected, "byte {at}");
        }
    }

    #[test]
    fn literals_of_every_kind_are_blanked() {
        assert_eq!(
            code_of(r#"("a\"b", 'c', '"', b'\'', '\u{1F600}', 'é')"#)
                .matches('c')
                .count(),
            0
        );
        assert_eq!(
            code_of(r##"f(r#"a"b"#, br"\", c"d") + g"##).replace(' ', ""),
            r##"f(r#""#,br"",c"")+g"##
        );
        assert_eq!(code_of("'\\\\' + x").replace(' ', ""), "''+x");
        assert_eq!(code_of("\"open").trim(), "\"");
    }

    #[test]
    fn lifetimes_labels_and_raw_identifiers_are_code() {
        for source in [
            "fn f<'a, 'b>(x: &'a str) {}",
            "'outer: loop {}",
            "r#type + br",
            "attr",
        ] {
            assert_eq!(code_of(source), source);
        }
    }

    #[test]
    fn use_trees_are_expanded() {
        let lexed =
            lex("use std::{fmt, sync::{self, Arc, atomic::*}, io as stdio};\nx.y(a::b::<T>::c());");
        let paths: Vec<String> = lexed
            .paths()
            .iter()
            .map(|(_, path)| path.join("::"))
            .collect();
        assert_eq!(
            paths,
            [
                "std::fmt",
                "std::sync",
                "std::sync::Arc",
                "std::sync::atomic::*",
                "std::io",
                "a::b"
            ]
        );
        assert_eq!(lexed.line_of(lexed.paths()[5].0), 2);
    }

    #[test]
    fn lines_under_cfg_test_are_known() {
        let source = "fn a() {}\n#[cfg(all(test, not(loom)))]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n\
                      #[cfg(test)]\nmod more;\n#[cfg(not(test))]\nfn d() {}\n#[cfg(any(test, loom))]\nfn e() {}\n";
        let lines = lex(source).test_lines();
        let marked: Vec<usize> = (1..lines.len()).filter(|&line| lines[line]).collect();
        assert_eq!(marked, [2, 3, 4, 5, 7, 8]);
        assert!(lex("#![cfg(test)]\nfn a() {}\n").test_lines()[2]);
    }
}
