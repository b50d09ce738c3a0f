//! Builds the sources of the runtime crate with shuttle.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=dlock_shuttle");
    // Features of the runtime crate that this package does not have.
    let features = r#"cfg(feature, values("actix", "axum", "idempotent", "scheduled", "testing", "tls", "tonic", "tower"))"#;
    println!("cargo::rustc-check-cfg={features}");
}
