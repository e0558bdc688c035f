//! The command `lockhound`: distributed locks for shells and scripts.
//!
//! A subcommand is one file: its options, and a function that runs it and returns an exit code.
//! What subcommands share is below them: where the servers are (`place`), and the exit codes
//! (`exit`). Those that tell of locks share `look`: what is on the servers.

mod child;
mod doctor;
mod exit;
mod force;
mod generate;
mod json;
mod leash;
mod log;
mod look;
mod ls;
mod out;
mod outage;
mod place;
mod raw;
mod run;
mod say;
mod show;
mod signals;
mod supervise;
mod terminal;
mod top;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::exit::Failure;

/// Distributed locks on Redis and Valkey, for shells, cron jobs and deployments.
#[derive(Debug, Parser)]
#[command(name = "lockhound", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
enum Command {
    Run(run::Args),
    Ls(ls::Args),
    Show(show::Args),
    Top(top::Args),
    Watch(watch::Args),
    Break(force::Args),
    Doctor(doctor::Args),
    #[command(hide = true)]
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => return exit::of_parsing(&refusal),
    };
    // One thread: the kernel kills the command of `run` when the thread that started it ends.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(run(cli.command)),
        Err(error) => Err(Failure::new(
            exit::SOFTWARE,
            format!("cannot start: {error}"),
        )),
    };
    ended.unwrap_or_else(|failure| failure.tell()).into()
}

async fn run(command: Command) -> Result<u8, Failure> {
    match command {
        Command::Run(args) => run::run(&args).await,
        Command::Ls(args) => ls::run(&args).await,
        Command::Show(args) => show::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Watch(args) => watch::run(&args).await,
        Command::Break(args) => force::run(&args).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Generate(args) => generate::run(&args, Cli::command()),
    }
}
