//! The limit of open file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, and returns the limit that holds from now on. Container runtimes set
/// a soft limit for old programs that cannot handle more; a server can.
pub fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum || setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return maximum.unwrap_or(u64::MAX);
    }
    // Some kernels do not accept an unlimited hard limit as the soft one; the previous limit holds.
    current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_raised_to_hard_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let raised = raise();
        assert_eq!(Some(raised), maximum.or(Some(u64::MAX)));
        assert_eq!(getrlimit(Resource::Nofile).current, maximum);
    }
}
