//! A wall clock that a test can set, by a shim that `cc` builds and that is preloaded into the
//! server.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// What a server's wall clock shows: a file that its shim maps.
pub struct Clock {
    shim: PathBuf,
    told: PathBuf,
}

impl Clock {
    /// Returns a clock for the server with this directory. `None`, and a line on stderr, if the
    /// shim cannot be built.
    pub fn new(directory: &Path, offset_ms: i64) -> Option<Self> {
        static SHIM: OnceLock<Option<PathBuf>> = OnceLock::new();
        let shim = SHIM.get_or_init(|| {
            build()
                .map_err(|reason| eprintln!("not run: no clock shim: {reason}"))
                .ok()
        });
        let clock = Self {
            shim: shim.clone()?,
            told: directory.join("clock"),
        };
        fs::write(&clock.told, [0; 16]).unwrap();
        clock.set(offset_ms);
        Some(clock)
    }

    /// Sets the clock to the machine's plus this many milliseconds.
    pub fn set(&self, offset_ms: i64) {
        self.tell(0, offset_ms * 1_000);
    }

    /// Stops the clock at this many microseconds since 1970.
    pub fn stop(&self, at_us: i64) {
        self.tell(8, at_us);
    }

    /// Writes a number at once, so that the server never sees half of it.
    fn tell(&self, at: u64, us: i64) {
        use std::os::unix::fs::FileExt as _;
        let file = OpenOptions::new().write(true).open(&self.told).unwrap();
        file.write_all_at(&us.to_ne_bytes(), at).unwrap();
    }

    /// Returns the environment of a server with this clock.
    pub fn environment(&self) -> [(&'static str, &Path); 2] {
        [("LD_PRELOAD", &self.shim), ("LOCKHOUND_CLOCK", &self.told)]
    }
}

/// Builds the shim under a unique name and renames it into place, since another test may be using
/// it already.
fn build() -> Result<PathBuf, String> {
    if !cfg!(target_os = "linux") {
        return Err("it is for Linux".to_owned());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/clock_shim.c");
    // Unit tests have no directory of their own.
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let to = option_env!("CARGO_TARGET_TMPDIR")
        .map(Path::new)
        .or(program.parent())
        .unwrap();
    let own = to.join(format!("clock_shim-{}.so", uuid::Uuid::new_v4()));
    fs::create_dir_all(to).map_err(|e| e.to_string())?;
    let mut cc = Command::new("cc");
    let made = cc
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(&own)
        .arg(source)
        .output();
    let made = made.map_err(|e| format!("cc cannot be run: {e}"))?;
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let shim = to.join("clock_shim.so");
    fs::rename(own, &shim).map_err(|e| e.to_string())?;
    Ok(shim)
}
