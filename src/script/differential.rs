//! Compares the server in memory with the Lua scripts: the same commands go to a real server and to a [`Store`], and
//! answers, messages and keys have to be the same, leases to the millisecond.
//!
//! The server's wall clock stands still unless a sequence moves it, so no tolerance is needed. A sequence is random:
//! commands of both formats in any order, repeated and late; writes of other clients; leases that end. It uses few
//! names, so that they meet. If the two differ, the test reports the shortest sequence that makes them differ.

mod mutants;
mod pair;
mod sequences;

use std::cell::RefCell;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use self::mutants::Mutant;
use self::pair::Pair;
use self::sequences::{Step, sequence};

/// The number of sequences in a test: `./dev soak` runs a million.
const SEQUENCES: u32 = if cfg!(feature = "soak") { 1_000_000 } else { 10_000 };

/// Runs sequences. Returns the shortest one that makes the two differ, and how they differ.
fn differ(pair: &mut Pair, runner: &mut TestRunner) -> Result<(), (Vec<Step>, String)> {
    let (pair, last) = (RefCell::new(pair), RefCell::new(None));
    let run = |steps: Vec<Step>| match pair.borrow_mut().run(&steps) {
        Ok(()) => Ok(()),
        Err(difference) => {
            *last.borrow_mut() = Some(difference);
            Err(TestCaseError::fail("they differ"))
        }
    };
    match (runner.run(&sequence(), run), last.into_inner()) {
        (Ok(()), _) => Ok(()),
        (Err(TestError::Fail(_, steps)), Some(difference)) => Err((steps, difference)),
        // A panic of the test itself is no difference.
        (Err(error), _) => panic!("{error}"),
    }
}

/// Each choice makes a new generator from the last one, so a cheap one is used.
fn config(cases: u32, max_shrink_iters: u32) -> Config {
    let rng_algorithm = RngAlgorithm::XorShift;
    Config { cases, max_shrink_iters, rng_algorithm, failure_persistence: None, ..Config::default() }
}

/// The same sequences each time.
fn repeatable(cases: u32) -> TestRunner {
    TestRunner::new_with_rng(config(cases, 0), TestRng::deterministic_rng(RngAlgorithm::XorShift))
}

#[test]
fn the_store_does_what_the_scripts_do() {
    for was_replica in [false, true] {
        let Some(mut pair) = Pair::start(was_replica, None) else { return };
        let mut runner = TestRunner::new(config(SEQUENCES / 2, 10_000));
        if let Err((steps, difference)) = differ(&mut pair, &mut runner) {
            panic!("{difference}\nafter {} steps: {steps:#?}", steps.len());
        }
    }
}

#[test]
fn each_mistake_of_a_store_is_found() {
    for mutant in Mutant::ALL {
        let Some(mut pair) = Pair::start(false, Some(mutant)) else { return };
        let found = differ(&mut pair, &mut repeatable(10_000));
        assert!(
            found.is_err_and(|(steps, _)| !steps.is_empty()),
            "{mutant:?}: 10,000 sequences did not find this mistake"
        );
    }
}
