//! The role of a pod in Spark.

use super::labels;

/// A pod's role in an application, from the label `spark-role`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// `spark-role=driver`.
    Driver,
    /// `spark-role=executor`.
    Executor,
    /// Any other pod. It may still run a driver: a notebook, a worker, a Livy server.
    Other,
}

impl Role {
    /// Reads the value of the label `spark-role`.
    pub fn from_label(value: Option<&str>) -> Role {
        match value {
            Some(labels::ROLE_DRIVER) => Role::Driver,
            Some(labels::ROLE_EXECUTOR) => Role::Executor,
            _ => Role::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_label_is_matched_exactly() {
        assert_eq!(Role::from_label(Some("driver")), Role::Driver);
        assert_eq!(Role::from_label(Some("executor")), Role::Executor);
        assert_eq!(Role::from_label(Some("Executor")), Role::Other);
        assert_eq!(Role::from_label(None), Role::Other);
    }
}
