//! Every `.rs` file in this directory, and every `main.rs` in its subdirectories, is a target in
//! the manifest. An unlisted file never runs.

#[test]
fn every_file_of_the_folder_is_a_listed_target() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).expect("the manifest can be read");

    let entries = std::fs::read_dir(folder).expect("the folder can be read").map_while(Result::ok);
    let roots =
        entries.map(|entry| entry.path()).map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let sources = roots.filter(|path| path.is_file() && path.extension().is_some_and(|end| end == "rs"));
    let names = sources.filter_map(|path| Some(path.strip_prefix(folder).ok()?.to_str()?.to_owned()));
    let unlisted: Vec<_> = names.filter(|name| !manifest.contains(&format!("path = \"{name}\""))).collect();

    assert!(unlisted.is_empty(), "not listed in tests/Cargo.toml: {unlisted:?}");
}
