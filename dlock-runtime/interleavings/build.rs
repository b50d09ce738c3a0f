//! Builds the sources of the runtime crate with loom.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=dlock_loom");
    // Features of the runtime crate that this package does not have.
    let features = r#"cfg(feature, values("actix", "axum", "idempotent", "scheduled", "testing", "tls", "tonic", "tower"))"#;
    println!("cargo::rustc-check-cfg={features}");
}
