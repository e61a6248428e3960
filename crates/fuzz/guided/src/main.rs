//! Runs the target of watershed-fuzz that `FUZZ_TARGET` names, on inputs that libFuzzer makes.
#![no_main]
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use watershed_fuzz::{FuzzTarget, TARGETS};

thread_local! {
    // The checks of a target are not shared between threads, and libFuzzer has one.
    static TARGET: FuzzTarget = target();
}

/// Makes the target. Without a name, prints all names and ends the process.
fn target() -> FuzzTarget {
    let name = env::var("FUZZ_TARGET").unwrap_or_default();
    let known = TARGETS.iter().find(|(known, _)| *known == name);
    let Some((_, make)) = known else {
        for (name, _) in TARGETS {
            println!("{name}");
        }
        process::exit(0);
    };
    make()
}

/// Writes the target's first inputs to the folder in `FUZZ_CORPUS`, which libFuzzer reads next.
fn write_corpus() {
    TARGET.with(|target| {
        let Ok(folder) = env::var("FUZZ_CORPUS") else {
            return;
        };
        fs::create_dir_all(&folder).expect("FUZZ_CORPUS can be created");
        for (number, input) in target.corpus().iter().enumerate() {
            let file = format!("{folder}/first-{number}");
            fs::write(file, input).expect("FUZZ_CORPUS can be written");
        }
    });
}

fuzz_target!(
    init: write_corpus(),
    |input: &[u8]| {
        TARGET.with(|target| target.run(input));
    }
);
