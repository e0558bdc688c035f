//! `lockhound generate`: the completions for shells and the manual pages, made of the options.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::{Shell, generate_to};

use crate::exit::{self, Failure};

/// Writes the completions for bash, fish and zsh, and the manual pages, into a directory
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes:\n  64  wrong usage\n  73  a file cannot be written")]
pub(crate) struct Args {
    /// The directory; it is made if it is missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, command: Command) -> Result<u8, Failure> {
    write(&args.directory, command).map_err(|e| {
        let text = format!("cannot write into {}: {e}", args.directory.display());
        Failure::new(exit::CANNOT_WRITE, text)
    })?;
    Ok(0)
}

fn write(directory: &Path, mut command: Command) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    // First, since the completions add a subcommand for each page of the help.
    clap_mangen::generate_to(command.clone(), directory)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut command, "lockhound", directory)?;
    }
    Ok(())
}
