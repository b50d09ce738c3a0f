//! Has the sources of the runtime crate built over shuttle.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=dlock_shuttle");
    // Features that the runtime crate has, and this one never.
    let features = r#"cfg(feature, values("actix", "axum", "testing", "tls", "tonic"))"#;
    println!("cargo::rustc-check-cfg={features}");
}
