//! Makes inputs out of others, and keeps those with a new outcome as material.
//!
//! The outcome stands in for coverage: a target returns a number of what it found, and an input
//! with a number that was not seen before is changed further.
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::FuzzTarget;

/// Inputs of a target in `make test`.
const INPUTS: u64 = 3_000;
/// Inputs kept besides the first ones.
const MAX_KEPT: usize = 2_000;
/// Longest input.
const MAX_BYTES: usize = 64 << 10;
/// Changes of one input.
const MAX_CHANGES: usize = 6;

/// Runs a target on inputs that are made from its corpus and pieces of its words.
///
/// Without `FUZZ_SECONDS` it gets a fixed number of inputs from a fixed seed.
pub fn fuzz(name: &str, target: &FuzzTarget) {
    let limit = std::env::var("FUZZ_SECONDS")
        .ok()
        .map(|text| Duration::from_secs(text.parse().expect("FUZZ_SECONDS is a number")));
    let seed = match std::env::var("FUZZ_SEED") {
        Ok(text) => text.parse().expect("FUZZ_SEED is a number"),
        Err(_) if limit.is_some() => fastrand::u64(..),
        Err(_) => 7,
    };
    let mut fuzzer = Fuzzer {
        rng: Rng::with_seed(seed),
        kept: target.corpus.clone(),
        words: target.words,
    };
    let mut outcomes = HashSet::new();
    for input in &target.corpus {
        outcomes.insert(outcome(seed, input, target));
    }
    let (started, mut inputs) = (Instant::now(), 0);
    while limit.map_or(inputs < INPUTS, |limit| started.elapsed() < limit) {
        let input = fuzzer.input();
        inputs += 1;
        if outcomes.insert(outcome(seed, &input, target)) && fuzzer.kept.len() < MAX_KEPT {
            fuzzer.kept.push(input);
        }
    }
    if limit.is_some() {
        eprintln!(
            "{name}: seed {seed}, {inputs} inputs, {} outcomes",
            outcomes.len()
        );
    }
    assert!(outcomes.len() > 3, "{name}: all inputs look alike");
}

/// Runs the target. Prints the input if it panics.
fn outcome(seed: u64, input: &[u8], target: &FuzzTarget) -> u64 {
    let found = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    found.unwrap_or_else(|panic| {
        eprintln!("seed {seed}, input b\"{}\"", input.escape_ascii());
        resume_unwind(panic)
    })
}

struct Fuzzer<'a> {
    rng: Rng,
    kept: Vec<Vec<u8>>,
    words: &'a [&'a str],
}

impl Fuzzer<'_> {
    /// Makes an input.
    fn input(&mut self) -> Vec<u8> {
        let mut input = self.kept[self.rng.usize(..self.kept.len())].clone();
        for _ in 0..self.rng.usize(1..=MAX_CHANGES) {
            self.change(&mut input);
        }
        input.truncate(MAX_BYTES);
        input
    }

    /// Changes one place.
    fn change(&mut self, input: &mut Vec<u8>) {
        let place = self.rng.usize(..=input.len());
        let end = (place + self.rng.usize(..32)).min(input.len());
        match self.rng.u8(..8) {
            0 => {
                input.drain(place..end);
            }
            1 => input.truncate(place),
            2 if place < input.len() => input[place] ^= 1 << self.rng.u8(..8),
            3 if place < input.len() => input[place] = self.interesting_byte(),
            4 => {
                let copy = input[place..end].to_vec();
                let to = self.rng.usize(..=input.len());
                input.splice(to..to, copy);
            }
            5 => {
                let other = &self.kept[self.rng.usize(..self.kept.len())];
                let from = self.rng.usize(..=other.len());
                let to = (from + self.rng.usize(..64)).min(other.len());
                input.splice(place..end, other[from..to].iter().copied());
            }
            _ => {
                let word = self.rng.choice(self.words).copied().unwrap_or("0");
                let to = if self.rng.bool() { end } else { place };
                input.splice(place..to, word.bytes());
            }
        }
    }

    fn interesting_byte(&mut self) -> u8 {
        let bytes = b"\0\x01\x7f\x80\xff \n\"\\{}[],:=!%/&?";
        self.rng.choice(bytes).copied().unwrap_or(0)
    }
}
