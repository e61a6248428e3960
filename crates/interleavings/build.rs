//! Compiles this crate, and no other, with `cfg(loom)`: dependencies like tokio have a meaning of
//! their own for it.

fn main() {
    println!("cargo::rustc-cfg=loom");
    println!("cargo::rerun-if-changed=build.rs");
}
