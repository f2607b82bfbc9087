//! Stores that cannot hold a tree, and invalid locations.

use crate::common::{Conditions, Faulty, create, open, options, try_open};
use object_store::memory::InMemory;
use objects::{Error, Location, is_url};
use vfs::{FileSystem as _, ROOT};

fn refusal(store: &std::sync::Arc<Faulty>) -> Error {
    try_open(store, options()).err().expect("it is refused")
}

#[test]
fn a_store_without_conditions_is_refused() {
    for conditions in [Conditions::Ignored, Conditions::Unknown] {
        let err = refusal(&Faulty::over(InMemory::new(), conditions));
        assert!(matches!(err, Error::NotConditional), "{conditions:?}: {err}");
    }
}

#[test]
fn a_prefix_that_has_something_else_is_refused_and_left_alone() {
    let store = Faulty::new();
    store.put_bytes("data/mine", vec![1]);
    let err = refusal(&store);
    assert!(err.to_string().contains("data/mine"), "{err}");
    assert!(store.names().contains(&"data/mine".to_owned()));
    store.remove("data/mine");
    let fs = open(&store, options());
    create(&fs, ROOT, "file");
    fs.sync().unwrap();
    drop(fs);
    // Objects of other programs are kept, also when there is a tree.
    store.put_bytes("data/mine", vec![1]);
    let fs = open(&store, options());
    fs.collect().unwrap();
    assert!(store.names().contains(&"data/mine".to_owned()));
}

#[test]
fn places_are_told_from_paths_and_wrong_ones_explained() {
    assert!(is_url("s3://bucket/prefix") && !is_url("/srv/data") && !is_url("data"));
    let parse = |text: &str, options: &[(&str, &str)]| {
        let options: Vec<_> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Location::parse(text, &options).err().map(|err| err.to_string())
    };
    let local = parse("file:///srv/data", &[]).unwrap();
    assert!(local.contains("by its path"), "{local}");
    assert!(parse("http://host/x", &[]).unwrap().contains("s3, gs or az"));
    assert!(parse("s3://bucket/x", &[("aws_regoin", "x")]).unwrap().contains("aws_regoin"));
    let keys = [("aws_region", "x"), ("AWS_ACCESS_KEY_ID", "k"), ("secret_access_key", "s")];
    assert_eq!(parse("s3://bucket/x", &keys), None);
    let account = [("account_name", "account"), ("use_emulator", "true")];
    assert_eq!(parse("az://container/x", &account), None);
}
