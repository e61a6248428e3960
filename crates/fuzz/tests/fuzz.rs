//! Mutated inputs for every parser of what comes from outside.
//!
//! `make test` gives each target a fixed number of inputs from a fixed seed. `FUZZ_SECONDS` gives
//! each so much time, from the seed in `FUZZ_SEED` or a random one (`make fuzz`).
#![allow(clippy::unwrap_used, reason = "a test may panic")]
use std::panic::catch_unwind;

use watershed_fuzz::{FuzzTarget, TARGETS, fuzz};

/// Makes a test of each target, so that they run side by side.
macro_rules! targets {
    ($($(#[$attribute:meta])* $name:ident)*) => {
        $(
            $(#[$attribute])*
            #[test]
            fn $name() {
                let (name, make) = TARGETS
                    .iter()
                    .find(|(name, _)| *name == stringify!($name))
                    .unwrap();
                fuzz(name, &make());
            }
        )*

        #[cfg(feature = "proxy")]
        #[test]
        fn every_target_is_run() {
            let mut run = vec![$(stringify!($name)),*];
            let mut known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            run.sort_unstable();
            known.sort_unstable();
            assert_eq!(run, known);
        }
    };
}

targets! {
    continue_tokens
    frames_in_json
    frames_in_protobuf
    gzip
    headers
    indented_json
    list_options
    lists_in_json
    lists_in_protobuf
    lists_of_versions
    objects_in_json
    objects_in_protobuf
    selectors
    transcoded_objects
    urls
    #[cfg(feature = "proxy")]
    audit_policies
    #[cfg(feature = "proxy")]
    certificates
    #[cfg(feature = "proxy")]
    checkpoints
    #[cfg(feature = "proxy")]
    configurations
    #[cfg(feature = "proxy")]
    proxy_headers
    #[cfg(feature = "proxy")]
    request_frames
    #[cfg(feature = "proxy")]
    request_lines
}

#[test]
fn a_planted_fault_is_found() {
    let found = catch_unwind(|| {
        let corpus = [b"limit=5".to_vec(), b"watch=1".to_vec()];
        let planted = FuzzTarget::new(corpus, &["limit=", "&", "9999"], |input| {
            assert!(!input.windows(4).any(|part| part == b"9999"));
            input.len()
        });
        fuzz("planted", &planted);
    });
    assert!(found.is_err());
}
