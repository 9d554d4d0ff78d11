//! Keys that Spark writes (`deploy/k8s/Constants.scala`).

/// Label: `driver` or `executor`. On every pod that Spark creates.
pub const ROLE: &str = "spark-role";
/// Value of [`ROLE`] on a driver.
pub const ROLE_DRIVER: &str = "driver";
/// Value of [`ROLE`] on an executor.
pub const ROLE_EXECUTOR: &str = "executor";
/// Label: the application id (`spark-` and 32 hex digits unless the user sets `spark.app.id`).
pub const APP_SELECTOR: &str = "spark-app-selector";
/// Label: the name of the application, as far as a label can have it. Since Spark 3.3.
pub const APP_NAME: &str = "spark-app-name";
/// Label: decimal executor id from 1, or the literal `EXECID` in the templates of statefulset and deployment allocators.
pub const EXEC_ID: &str = "spark-exec-id";
/// Label: resource profile id, `0` is the default profile. Since Spark 3.1.
pub const PROFILE_ID: &str = "spark-exec-resourceprofile-id";
/// Label: `"true"` on a finished executor that is kept (`deleteOnTermination=false`).
pub const INACTIVE: &str = "spark-exec-inactive";
/// Label: e.g. `4.3.0`. Since Spark 3.3.
pub const VERSION: &str = "spark-version";

/// Name of the container that runs the driver.
pub const DRIVER_CONTAINER: &str = "spark-kubernetes-driver";
/// Name of the container that runs an executor, unless a pod template names another.
pub const EXECUTOR_CONTAINER: &str = "spark-kubernetes-executor";
/// Name of that container in Spark 2.
pub const OLD_EXECUTOR_CONTAINER: &str = "executor";
/// Environment variable of an executor: `spark://CoarseGrainedScheduler@HOST:PORT`.
pub const ENV_DRIVER_URL: &str = "SPARK_DRIVER_URL";
/// Volumes that carry the driver's `spark.properties`: since 3.1, and before.
pub const DRIVER_CONF_VOLUMES: [&str; 2] = ["spark-conf-volume-driver", "spark-conf-volume"];
/// Key of the driver's ConfigMap that holds its configuration as Java properties.
pub const PROPERTIES_KEY: &str = "spark.properties";
