//! Keys that Spark writes (`deploy/k8s/Constants.scala`) and keys that are ours.

/// Label: `driver` or `executor`. On every pod that Spark creates.
pub const ROLE: &str = "spark-role";
/// Value of [`ROLE`] on a driver.
pub const ROLE_DRIVER: &str = "driver";
/// Value of [`ROLE`] on an executor.
pub const ROLE_EXECUTOR: &str = "executor";
/// Label: the application id (`spark-` and 32 hex digits unless the user sets `spark.app.id`).
pub const APP_SELECTOR: &str = "spark-app-selector";
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

/// The prefix of every annotation that is ours.
pub const PREFIX: &str = "spark-usher.io/";
/// Annotation read: leave this pod alone.
pub const SKIP: &str = "spark-usher.io/skip";
/// Annotation read: a scheduler type instead of the policy's.
pub const SCHEDULER: &str = "spark-usher.io/scheduler";
/// Annotation read: a queue instead of the policy's.
pub const QUEUE: &str = "spark-usher.io/queue";
/// Annotation read: how many executors must be there together. Clamped to the application's target.
pub const MIN_MEMBER: &str = "spark-usher.io/min-member";
/// Annotation read: what one executor requests, as a JSON object of resource name to quantity.
pub const EXECUTOR_RESOURCES: &str = "spark-usher.io/executor-resources";
/// Annotation written: weaker evidence of whose executor this is, `how/name/uid`.
pub const DRIVER: &str = "spark-usher.io/driver";
/// Value of [`DRIVER`] on an executor that a stranger created: nobody adopts it later.
pub const FOREIGN: &str = "foreign-creator";
/// Annotation written on a pod that we seated: `policy/scheduler-type`. On a PodGroup: `started` once the gang ran.
pub const BY: &str = "spark-usher.io/by";
/// Value of [`BY`] on a pod that the fallback policy placed; the webhook decides about it anew.
pub const BY_FALLBACK: &str = "fallback";
/// Annotation written on drivers and executors: proves who created them and how our webhook placed them
/// ([`crate::signature`]).
pub const SIGNATURE: &str = "spark-usher.io/signature";
/// Annotation written on our PodGroups once the whole gang has run: from then on a dynamic application may shrink.
pub const STARTED: &str = "spark-usher.io/started";
/// Annotation written with [`INACTIVE`] on an executor that we labelled: why it ended. An executor that carries the label
/// without it was labelled by its driver, which keeps its finished executors.
pub const ENDED: &str = "spark-usher.io/ended";
/// Annotation on our ValidatingAdmissionPolicies and bindings: the hash of what the policy file makes of them.
pub const POLICY_HASH: &str = "spark-usher.io/policy-hash";
/// Annotation on the same: the first part of their names, which tells the objects of one installation.
pub const POLICY_SET: &str = "spark-usher.io/policy-set";
/// Label on objects that we made; we change and delete only those.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY`], the field manager of our writes, and the component of our Events.
pub const USHER: &str = "spark-usher";
