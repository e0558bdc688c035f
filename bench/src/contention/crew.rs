//! The processes that contend in the same slot, and what is read of the servers meanwhile.

use std::time::Duration;

use super::line::{Order, now};
use super::plan::{Crew, Plan};
use super::process::Process;
use super::round::{Round, Said, Served};
use crate::Failure;
use crate::connection::Connection;

/// Between the order and its beginning: the last process has read it by then.
const NOTICE: Duration = Duration::from_millis(50);
/// All contend before they are counted, and a while after: what is counted has neither a beginning nor an end.
const LEAD: Duration = Duration::from_millis(250);
/// A JVM compiles what it runs often.
const WARM_UP_OF_JVM: Duration = Duration::from_secs(3);
const WARM_UP: Duration = Duration::from_millis(250);

/// A crew whose processes are there.
pub(crate) struct Running {
    crew: &'static Crew,
    /// Of each member.
    processes: Vec<Vec<Process>>,
    slots: usize,
}

impl Crew {
    /// Whether a program is needed for it that may not be there.
    pub(crate) fn is_foreign(&self) -> bool {
        self.members.iter().any(|member| member.program.is_foreign())
    }
}

impl Running {
    /// # Errors
    /// Of a foreign crew: why it cannot be tried.
    pub(crate) fn start(crew: &'static Crew, urls: &[String]) -> Result<Self, Failure> {
        let mut processes = Vec::with_capacity(crew.members.len());
        for member in crew.members {
            let start = |_| Process::start(member.program, member.lockers, member.tasks, urls);
            processes.push((0..member.processes).map(start).collect::<Result<Vec<_>, _>>()?);
        }
        for process in processes.iter_mut().flatten() {
            process.ready()?;
        }
        Ok(Self { crew, processes, slots: 0 })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.crew.name
    }

    pub(crate) fn has_lockhound(&self) -> bool {
        self.crew.has_lockhound()
    }

    pub(crate) fn warm_up(&mut self, plan: &Plan, controls: &mut [Connection]) -> Result<(), Failure> {
        let time = if self.crew.is_foreign() { WARM_UP_OF_JVM } else { WARM_UP };
        self.slot(plan, time, controls).map(drop)
    }

    /// Has all of them contend for this time, for keys that nobody has used.
    pub(crate) fn slot(&mut self, plan: &Plan, time: Duration, controls: &mut [Connection]) -> Result<Round, Failure> {
        // Names of keys have no spaces in a line, and no commas.
        let prefix = format!("contention:{}:{}:{}", plan.name, self.crew.name, self.slots).replace([' ', ','], "");
        self.slots += 1;
        let begin = now() + nanos(NOTICE);
        let (from, to) = (begin + nanos(LEAD), begin + nanos(LEAD + time));
        let keys = (0..plan.keys).map(|key| format!("{prefix}:{key}")).collect();
        let order = Order { keys, begin, end: to + nanos(LEAD), hold_us: plan.hold_us };
        for process in self.processes.iter_mut().flatten() {
            process.tell(&order)?;
        }
        sleep_until(from);
        for control in &mut *controls {
            control.reset_calls()?;
        }
        let cpu_before = cpu(controls)?;
        let start = now();
        sleep_until(to);
        // Where this process was late, the slot was longer: what is counted is what the servers had done by then.
        let slot = start..now().min(order.end);
        let cpu_seconds = cpu(controls)? - cpu_before;
        let commands = self.crew.members.iter().flat_map(|member| member.program.commands());
        let commands: Vec<&str> = commands.copied().collect();
        let scripts = controls.iter_mut().map(|control| control.count(&commands)).sum::<Result<f64, _>>()?;
        let said = self.hear()?;
        Ok(Round::of(&said, plan.keys, &slot, Served { scripts, cpu_seconds }))
    }

    fn hear(&mut self) -> Result<Vec<Said>, Failure> {
        let mut said = Vec::with_capacity(self.processes.len());
        for (member, processes) in self.crew.members.iter().zip(&mut self.processes) {
            let processes = processes.iter_mut().map(Process::hear).collect::<Result<_, _>>()?;
            said.push(Said { tasks: member.lockers * member.tasks, processes });
        }
        Ok(said)
    }
}

fn cpu(controls: &mut [Connection]) -> Result<f64, Failure> {
    Ok(controls.iter_mut().map(Connection::cpu).sum::<Result<f64, _>>()?)
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

fn sleep_until(time: u64) {
    std::thread::sleep(Duration::from_nanos(time.saturating_sub(now())));
}
