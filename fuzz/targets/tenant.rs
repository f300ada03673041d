//! `--tenant NAME=TRACE[,max=SIZE][,format=FORMAT]`: what is accepted can be written again.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/highwater-cli/src/tenant_arg.rs"]
mod tenant_arg;

use tenant_arg::TenantArgument;

fuzz_target!(|text: &str| {
    let tenant: TenantArgument = match text.parse() {
        Ok(tenant) => tenant,
        Err(error) => return assert!(!error.is_empty()),
    };
    assert!(!tenant.name.is_empty() && !tenant.trace.as_os_str().is_empty());
    let mut written = format!("{}={}", tenant.name, tenant.trace.display());
    if let Some(max) = tenant.max {
        assert!(max.pages_floor().0 > 0);
        written += &format!(",max={}", max.0);
    }
    if let Some(format) = tenant.format {
        written += &format!(",format={format}");
    }
    assert_eq!(written.parse(), Ok(tenant));
});
