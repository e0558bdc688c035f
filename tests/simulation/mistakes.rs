//! Maps each mistake of the models to the patch in `mutants/` that makes it in the source, or to
//! why there is none.

use std::collections::BTreeSet;
use std::path::Path;

use Held::{By, No};

/// Whether the simulation finds a mistake.
#[derive(Debug, Clone, Copy)]
enum Held {
    /// By this patch.
    By(&'static str),
    /// There is no patch, for this reason.
    No(&'static str),
}

/// A server in memory executes the commands of a connection in order. When a connection is given
/// up, none of its commands runs after those of the next connection.
const IN_ORDER: Held =
    No("servers in memory execute what a locker sends in its order, so nothing overtakes anything");
/// For the same reason an answer settles all commands before it, and a doubt about them ends with
/// it.
const IN_ORDER_TOO: Held = No(
    "servers in memory execute what a locker sends in its order, so an answer settles it: `src/hold.rs` tests this",
);
/// Lockers of this crate listen for only a moment without being in a list.
const NO_OTHERS: Held = No(
    "no client of the simulation waits outside of the list for long: 6,000 seeds do not find it",
);
/// The next locker checks 20 ms later, which is within the bound.
const WATCHED: Held =
    No("another one watches, so that it costs 20 ms at the most: 6,000 seeds do not find it");

/// The model of memories finds it.
const RARE: Held =
    No("it takes a loss and late commands in one order of many: 250 seeds do not find it");

/// A locker looks at the re-check, which is the bound of the simulation.
const LOOKS: Held =
    No("a locker asks by itself within the bound: `tests/in_memory/lists.rs` tests how soon");

/// For the same reason.
const LOOKS_LATE: Held =
    No("a locker asks by itself within the bound: `src/line/course.rs` tests that it asks at once");

/// The scripts are tried at random, each with such mistakes.
const TRIED: Held = No("`tests/unit/read_write_scripts.rs` makes it in the Lua, and finds it");

/// Who waits for whom is a question of milliseconds.
const WAITS: Held = No("it delays callers, within the bounds that the simulation has for them");

/// The same of permits.
const TRIED_PERMITS: Held = No("`tests/unit/permit_scripts.rs` makes it in the Lua, and finds it");
const NO_JVM: Held = No("the simulation has no JVMs: `tests/redisson_permits/main.rs` has them");
/// The same of fair locks.
const TRIED_QUEUE: Held = No("`tests/unit/fair_scripts.rs` makes it in the Lua, and finds it");
const QUEUED: Held =
    No("the simulation does not see who is before whom in a queue: the model finds it");
const REFUSED_PERMITS: Held = No("servers in memory refuse nobody a right: the model finds it");

/// Observers look within the bound of the simulation.
const ELECTED: Held = No("made by hand, each of them fails a test of `tests/election`");

/// And of latches.
const TRIED_LATCH: Held = No("`tests/unit/latch_scripts.rs` makes it in the Lua, and finds it");
const OPENED: Held =
    No("a caller that waits for a latch looks in any case: `tests/latch` tests when");

/// For each model: its file and its mistakes.
const MODELS: [(&str, &[(&str, Held)]); 12] = [
    (
        "tests/model/main.rs",
        &[
            ("GenerationPerTask", By("one_generation")),
            ("ValidityFromReply", By("validity_from_the_answer")),
            ("NoDrift", No("virtual clocks do not drift")),
            ("UnknownRepeated", IN_ORDER),
            ("NoCancel", By("unknown_is_not_undone")),
            ("CancelOnce", IN_ORDER),
            ("UnwantedKept", By("unwanted_is_kept")),
            (
                "CountIncrements",
                No("counts on the server are for others to see, and the simulation looks at none"),
            ),
            ("ReleaseBlind", By("release_is_blind")),
            ("RenewalCreates", By("renewal_creates")),
            ("LostRevives", By("lost_revives")),
            ("GoneIgnored", By("gone_is_ignored")),
        ],
    ),
    (
        "tests/model/hand_over.rs",
        &[
            ("GrantsBlindly", By("hand_over_grants_blindly")),
            ("TakesWhatIsFree", By("hand_over_takes_what_is_free")),
            ("ValidityFromReply", By("hand_over_valid_from_the_answer")),
            (
                "LeavesWithTheAnswer",
                No("a guard is gone when its release is sent: `unlock` consumes it"),
            ),
            ("UndoesBothAtOnce", IN_ORDER),
            ("UndoesTheFirstOnly", By("hand_over_undoes_the_first_only")),
            (
                "UndoesTheSecondOnly",
                No("what is sent to a server in memory is executed, or the server forgets all"),
            ),
            (
                "LateYesKept",
                No(
                    "its lease is over, and shorter than a command timeout: nothing stands for long",
                ),
            ),
            ("UnwantedKept", By("unwanted_is_kept")),
            ("SameFence", By("hand_over_keeps_the_fence")),
            (
                "ForgetsTheLine",
                No(
                    "whatever is under way tells its line the outcome, at the latest when it is dropped",
                ),
            ),
            ("GoneIsDone", By("hand_over_of_what_is_gone")),
        ],
    ),
    (
        "tests/model/across/mod.rs",
        &[
            (
                "GoIsAGrant",
                No("a wake-up has no field and no fence to make a hold of"),
            ),
            ("NobodyWatches", By("nobody_watches")),
            ("ForgetsWhileAsking", By("wake_up_forgotten_while_asking")),
            ("ForgetsWhileReleasing", WATCHED),
            ("SleepsOn", By("gone_and_still_listed")),
            ("TrustsReconnects", By("reconnects_are_trusted")),
            ("TrustsSubscriptions", LOOKS_LATE),
            ("OnlyTheFirstHears", By("only_the_first_hears")),
            ("EndlessTurns", By("turns_have_no_end")),
            ("EndlessTurnsAlone", By("turns_alone_have_no_end")),
            ("MuteWithoutList", NO_OTHERS),
            ("OneDecidesForAll", NO_OTHERS),
            ("PassesAreInOrder", LOOKS),
            ("SecondSleeps", By("second_of_the_list_sleeps")),
        ],
    ),
    (
        "tests/model/quorum/mod.rs",
        &[
            ("NoQuarantine", By("b4_votes_are_not_vetted")),
            ("FenceKept", By("fences_not_agreed_upon")),
            (
                "FenceAnywhere",
                No("a raise names the lock for which it is written"),
            ),
            ("ClockAlone", By("clock_without_a_count")),
            ("ClockTrusted", By("clock_before_the_mark")),
            ("MarksExpire", By("b2_marks_run_out")),
            ("RaiseLowers", By("raise_lowers_a_mark")),
            ("MarksForgotten", By("marks_not_brought_along")),
            ("MarksToldAtOnce", By("marks_told_at_once")),
            ("GenerationPerTask", By("one_generation")),
            ("RetakeForgotten", By("late_yes_after_the_release")),
            ("RetakeTrusted", By("retake_in_doubt_is_forgotten")),
            ("DoubtForgotten", IN_ORDER_TOO),
            ("ValidityOfOne", By("validity_of_one_vote")),
        ],
    ),
    (
        "tests/model/memory/mod.rs",
        &[
            ("AcquireBlind", By("acquires_are_not_vetted")),
            ("RunIgnored", By("memory_of_another_run")),
            (
                "IdKept",
                No("ids are random, so there is no line that would keep one"),
            ),
            ("NoWait", By("forgot_and_votes_at_once")),
            ("NothingAnnounced", RARE),
            ("OwnLeases", By("wait_for_own_leases")),
            ("OneWitness", By("one_witness")),
            ("VettedInRound", RARE),
            ("OpenedBlind", RARE),
            ("RetakeAnywhere", By("b1_renewals_are_not_vetted")),
            ("RetakeKept", By("b1_renewals_are_not_vetted")),
            ("MarksUntold", By("marks_not_brought_along")),
            ("AskedEarly", By("marks_told_at_once")),
            ("ShorterWait", By("wait_is_cut_short")),
            (
                "NotNoted",
                No(
                    "servers vote after another lease even so: `tests/model/memory` has what it costs",
                ),
            ),
            (
                "NeverLate",
                No("all servers come back here: `tests/memory/main.rs` has one that does not"),
            ),
        ],
    ),
    (
        "tests/model/rw.rs",
        &[
            ("NoTimeoutKey", TRIED),
            ("RenewalLowers", TRIED),
            ("RenewalCreates", By("renewal_creates")),
            ("InsideNotCompared", TRIED),
            ("DowngradeFrees", By("downgrade_frees")),
            (
                "DowngradeOfADeadOne",
                No("the hash is free a lease later all the same"),
            ),
            ("LiveReaderIgnored", TRIED),
            ("WriteIgnored", TRIED),
            ("TakesAPlainHash", TRIED),
            ("UndoneOnce", IN_ORDER),
        ],
    ),
    (
        "tests/model/rw_phases.rs",
        &[
            ("NoHint", WAITS),
            ("NoTurn", WAITS),
            ("TurnForAll", WAITS),
            ("TurnAfterReads", WAITS),
            ("HintKept", WAITS),
            ("SilentWithdrawal", WAITS),
            ("WithdrawsAtOnce", WAITS),
            ("GrantKeepsHint", WAITS),
            ("HintWithoutEnd", WAITS),
            ("SilentDowngrade", WAITS),
            ("TrustsFirstAnswer", WAITS),
        ],
    ),
    (
        "tests/model/latch.rs",
        &[
            ("CountsTwice", By("latch_counts_twice")),
            ("SetsTwice", TRIED_LATCH),
            ("ForgetsAtZero", TRIED_LATCH),
            ("ForgetsAtSet", TRIED_LATCH),
            ("UnsetLeavesNoId", TRIED_LATCH),
            ("RefusedLeavesNoId", TRIED_LATCH),
            ("CopyIsRefused", TRIED_LATCH),
            ("CountsBelowZero", TRIED_LATCH),
            ("LeavesZero", TRIED_LATCH),
            ("OpensSilently", OPENED),
            ("BelievesMessages", OPENED),
            ("HearsZerosOnly", OPENED),
            ("TrustsFirstRead", OPENED),
            ("TrustsReconnects", OPENED),
            ("ForgetsWhileReading", OPENED),
            ("NeverLooks", OPENED),
        ],
    ),
    (
        "tests/model/election.rs",
        &[
            ("ValueWithoutField", By("leader_value_of_another")),
            ("WrittenWithoutField", ELECTED),
            ("OlderOverwrites", ELECTED),
            ("ProclaimsSilently", ELECTED),
            ("MissesNone", ELECTED),
            ("TrustsFirstRead", ELECTED),
            ("TrustsReconnects", ELECTED),
            ("ForgetsWhileReading", ELECTED),
            ("NeverLooks", By("observers_never_look")),
        ],
    ),
    (
        "tests/model/permits.rs",
        &[
            ("UndoAddsBlindly", By("permits_given_back_twice")),
            ("ReleaseAddsBlindly", By("permits_given_back_twice")),
            ("UndoneOnce", IN_ORDER),
            ("TakesTwice", TRIED_PERMITS),
            ("FirstMemberStandsForAll", TRIED_PERMITS),
            ("TakesAPart", By("permits_taken_in_part")),
            ("RenewalCreates", By("permits_renewed_from_nothing")),
            ("RenewalOfAPart", TRIED_PERMITS),
            ("LostCounterStartsFull", By("permits_lost_counter_is_full")),
            ("LostCounterNotBelowZero", TRIED_PERMITS),
            ("ReleaseCreatesCounter", TRIED_PERMITS),
            (
                "CapacityEachTime",
                No("all handles of the simulation have one capacity: `tests/permits` tests others"),
            ),
            ("ResizeIgnoresTaken", TRIED_PERMITS),
            ("PrunesByClientsClock", NO_JVM),
            ("PrunesWhatIsWanted", NO_JVM),
            ("PruneGivesNothingBack", By("permits_pruned_for_nobody")),
            ("NoSlack", TRIED_PERMITS),
            ("PrunesWithoutSlack", TRIED_PERMITS),
            ("AddsFirst", REFUSED_PERMITS),
            ("HalfARelease", REFUSED_PERMITS),
            ("HalfAnAcquire", REFUSED_PERMITS),
            ("HalfAPrune", REFUSED_PERMITS),
            ("RecordsOutlive", TRIED_PERMITS),
            ("RecordsEndEarly", TRIED_PERMITS),
        ],
    ),
    (
        "tests/model/fair.rs",
        &[
            ("HeadNeverPassed", By("head_never_passed")),
            ("ScoreOfOneLease", TRIED_QUEUE),
            ("LateEnqueueStays", QUEUED),
            ("OvertakenEnqueueStays", QUEUED),
            ("LeavesSilently", TRIED_QUEUE),
            ("TicketIsTheField", QUEUED),
            ("HeadNotCompared", TRIED_QUEUE),
            ("EnqueuedLate", QUEUED),
            ("ReleasesSilently", TRIED_QUEUE),
            ("ForgetsWhileAsking", QUEUED),
            ("EachByItsTicket", TRIED_QUEUE),
            ("UndoesSilently", QUEUED),
            ("GrantIsNoLeave", QUEUED),
            ("PassesSilently", TRIED_QUEUE),
            ("PassesOneCaller", TRIED_QUEUE),
        ],
    ),
    (
        "tests/model/permits_waits.rs",
        &[
            ("PassesWhatDoesNotFit", WAITS),
            ("ThriftyWhileAsking", WAITS),
            ("LeavesSilently", WAITS),
            ("OnlyTheFirstLeaves", WAITS),
            ("UndoesSilently", WAITS),
            ("PrunesSilently", WAITS),
            ("NoDueTime", WAITS),
            ("RaisesSilently", WAITS),
            ("TrustsFirstAnswer", WAITS),
            ("ForgetsWhileAsking", WAITS),
            ("AsksOnce", WAITS),
        ],
    ),
];

/// Returns the mistakes of a model: the variants of its `enum`.
fn mistakes(source: &str) -> Vec<&str> {
    let begins = |line: &str| line.ends_with("enum Mutant {") || line.ends_with("enum Mistake {");
    let lines = source
        .lines()
        .skip_while(|line| !begins(line))
        .skip(1)
        .take_while(|line| *line != "}");
    lines
        .map(str::trim)
        .filter(|line| !line.starts_with("//"))
        .map(|line| line.trim_end_matches(','))
        .collect()
}

#[test]
fn each_mistake_of_a_model_has_its_patch_or_a_reason_for_none() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (file, table) in MODELS {
        let source = std::fs::read_to_string(root.join(file)).unwrap();
        let names: Vec<_> = table.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, mistakes(&source), "of {file}");
        for (name, held) in table {
            match held {
                By(patch) => {
                    let path = root
                        .join("tests/simulation/mutants")
                        .join(format!("{patch}.patch"));
                    assert!(path.exists(), "{file}, {name}: {path:?}");
                }
                No(reason) => assert!(reason.len() > 20, "{file}, {name}: {reason}"),
            }
        }
    }
}

#[test]
fn every_model_with_mistakes_is_in_the_table() {
    fn files(directory: &Path, found: &mut BTreeSet<String>) {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let source = std::fs::read_to_string(&path).unwrap();
                let name = path
                    .strip_prefix(env!("CARGO_MANIFEST_DIR"))
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                if name.contains("model") && !mistakes(&source).is_empty() {
                    found.insert(name);
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    for top in ["tests", "src"] {
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(top), &mut found);
    }
    assert_eq!(
        found,
        MODELS.iter().map(|(file, _)| (*file).to_owned()).collect()
    );
}
