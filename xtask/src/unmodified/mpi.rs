//! MPI over libfabric and over UCX: a program of ours, four ranks on both hosts.
//!
//! Its processes are started on the other host by a script in place of ssh, which enters that host's namespace and puts `longhaul
//! run` around what it is asked to start, as an administrator would by `--mca plm_rsh_agent`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::{ADDRESSES, LINK};
use crate::packages::{self, Tool};
use crate::process::{command, root, run};

/// What each MPI needs: its starter and its compiler.
const OPENMPI: &[Tool] = &[
    Tool { needs: "mpirun.openmpi", package: "openmpi-bin" },
    Tool { needs: "mpicc.openmpi", package: "libopenmpi-dev" },
];
const MPICH: &[Tool] = &[
    Tool { needs: "mpiexec.mpich", package: "mpich" },
    Tool { needs: "mpicc.mpich", package: "libmpich-dev" },
];

/// The program.
const SOURCE: &str = "ffi/verbs/tests/mpi/exchange.c";
/// What its first rank says in the end.
pub const SAYS: &str = "4 ranks on 2 hosts agree";
/// The script's name.
const ENTER: &str = "enter";

/// A way to run the program.
pub struct Way {
    /// What it is called in the table.
    pub name: &'static str,
    /// `mpirun` with the options that choose it. `ENTER`, `PROGRAM`, `HOSTS` and `LINK` are replaced.
    command: &'static str,
    /// Run in CI.
    pub brief: bool,
    /// Which MPI it is.
    tools: &'static [Tool],
}

macro_rules! openmpi {
    ($($more:literal),*) => {
        concat!(
            "mpirun.openmpi --allow-run-as-root --host HOSTS -np 4 --mca plm_rsh_agent ENTER --mca oob_tcp_if_include LINK \
             --mca mpi_yield_when_idle 1 ",
            $($more),*,
            " ./exchange.openmpi"
        )
    };
}

/// All of them.
pub const WAYS: &[Way] = &[
    Way {
        name: "OpenMPI over UCX (rc_verbs)",
        command: openmpi!(
            "--mca pml ucx --mca osc ucx -x UCX_NET_DEVICES=longhaul0:1 -x UCX_TLS=rc_verbs,ud_verbs,self"
        ),
        brief: false,
        tools: OPENMPI,
    },
    Way {
        name: "OpenMPI over UCX (ud_verbs)",
        command: openmpi!(
            "--mca pml ucx --mca osc ucx -x UCX_NET_DEVICES=longhaul0:1 -x UCX_TLS=ud_verbs,self"
        ),
        brief: false,
        tools: OPENMPI,
    },
    Way {
        name: "OpenMPI over libfabric (verbs;ofi_rxm)",
        command: openmpi!(
            "--mca pml cm --mca mtl ofi --mca btl self --mca osc pt2pt --mca mtl_ofi_provider_include 'verbs;ofi_rxm'"
        ),
        // 5 s on a machine that is not busy.
        brief: true,
        tools: OPENMPI,
    },
    Way {
        name: "MPICH over UCX (rc_verbs)",
        command: "env UCX_NET_DEVICES=longhaul0:1 UCX_TLS=rc_verbs,ud_verbs,self mpiexec.mpich -launcher ssh -launcher-exec ENTER \
                  -iface LINK -hosts HOSTS -n 4 ./exchange.mpich gather-to-first",
        brief: false,
        tools: MPICH,
    },
];

impl Way {
    /// What is run on the first host.
    pub fn command(&self, folder: &Path) -> String {
        let [a, b] = ADDRESSES;
        let enter = folder.join(ENTER);
        let command = self.command.replace("ENTER", &enter.display().to_string()).replace("LINK", LINK);
        command.replace("HOSTS", &format!("{a}:2,{b}:2"))
    }
}

/// Compiles the program for each MPI, and writes the script.
///
/// # Errors
/// What cannot be installed; what the compilers say.
pub fn prepare(ways: &[&Way], folder: &Path, namespaces: &[String; 2], longhaul: &Path) -> Result<()> {
    for (of, tools) in [("openmpi", OPENMPI), ("mpich", MPICH)] {
        if !ways.iter().any(|w| w.tools == tools) {
            continue;
        }
        packages::need(tools)?;
        let mut cc = command(&format!("mpicc.{of}"));
        // MPICH's header declares MPI_STATUSES_IGNORE as one that has no room.
        cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-overflow", "-o"]);
        run(cc.arg(folder.join(format!("exchange.{of}"))).arg(root().join(SOURCE)))?;
    }
    let [(first, a), (second, b)] = [(ADDRESSES[0], &namespaces[0]), (ADDRESSES[1], &namespaces[1])];
    // Names of hosts differ, as on real ones: by them ranks know with whom they share memory.
    let script = format!(
        "#!/bin/sh\n# enter HOST COMMAND: starts a command on a host, as ssh does.\n\
         [ \"$1\" = -x ] && shift\n\
         case $1 in {first}) host={a} ;; {second}) host={b} ;; *) echo \"no host $1\" >&2; exit 1 ;; esac\n\
         shift\n\
         exec ip netns exec $host unshare --uts sh -c 'hostname \"$0\"; exec {} run -- sh -c \"$1\"' $host \"$*\"\n",
        longhaul.display()
    );
    let path = folder.join(ENTER);
    std::fs::write(&path, script).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?)
}
