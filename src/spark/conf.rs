//! The application's size and lifecycle configuration in the driver's `spark.properties`.
//!
//! Of the whole file only numbers are kept, because it contains credentials too (`docs/spark.md#driver-configmap`). A tenant
//! writes the values, so an invalid one counts as not set, which makes the size unknown rather than wrong.

use std::time::Duration;

use super::lifecycle_conf::{self, LifecycleConf};
use super::properties;
use super::quantity::Quantity;
use super::resources::ResourceList;

/// Spark's default of `spark.executor.instances` on Kubernetes (`SchedulerBackendUtils.DEFAULT_NUMBER_EXECUTORS`).
const DEFAULT_INSTANCES: u32 = 2;

/// The settings that decide how many executors an application creates, how fast, and how large.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AppConf {
    /// How many executors the application requests, and whether that changes while it runs.
    pub allocation: Allocation,
    /// `spark.kubernetes.allocation.batch.size`: executors in one wave.
    pub batch_size: Option<u32>,
    /// `spark.kubernetes.allocation.maxPendingPods`.
    pub max_pending: Option<u32>,
    /// `spark.kubernetes.allocation.maximum` (4.1): executors over the application's whole life.
    pub maximum: Option<u32>,
    /// What one executor of the default profile requests, by Spark's own arithmetic. Sidecars of a pod template are
    /// not included.
    pub executor: ResourceList,
    /// How its driver manages the lifecycle of its executors.
    pub lifecycle: LifecycleConf,
    /// Where its driver serves the REST API.
    pub ui: Ui,
    /// `spark.kubernetes.submitInDriver`: the driver runs in the pod that spark-submit created for it (cluster mode).
    pub in_driver_pod: bool,
}

/// Where a driver serves its web UI, and with it the REST API (`internal/config/UI.scala`, `SSLOptions.scala`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ui {
    /// `spark.ui.enabled`.
    pub enabled: bool,
    /// `spark.ui.port`, 4040 when unset. A busy port makes the driver try the next one, up to 16 times.
    pub port: u16,
    /// The port of HTTPS, to which the other one redirects: `spark.ssl.ui.port`, or 400 above the other one
    /// (`JettyUtils.startJettyServer`). `None` without `spark.ssl.ui.enabled`.
    pub tls_port: Option<u16>,
    /// `spark.ui.retainedDeadExecutors`: how many removed executors it shows.
    pub retained_dead: u32,
}

/// Spark's default of `spark.ui.port`.
pub const UI_PORT: u16 = 4040;
/// Spark's default of `spark.ui.retainedDeadExecutors`.
const RETAINED_DEAD: u32 = 100;

impl Default for Ui {
    fn default() -> Ui {
        Ui { enabled: true, port: UI_PORT, tls_port: None, retained_dead: RETAINED_DEAD }
    }
}

/// How the number of executors is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// A fixed number.
    Static {
        /// `spark.executor.instances`, 2 when unset.
        instances: u32,
    },
    /// `spark.dynamicAllocation.enabled`.
    Dynamic {
        /// `spark.dynamicAllocation.minExecutors`.
        min: u32,
        /// The initial number: the largest of minimum, initial and instances
        /// (`Utils.getDynamicAllocationInitialExecutors`).
        initial: u32,
    },
}

impl Default for Allocation {
    fn default() -> Self {
        Allocation::Static { instances: DEFAULT_INSTANCES }
    }
}

impl AppConf {
    /// Reads the text of `spark.properties`.
    pub fn parse(text: &str) -> AppConf {
        let mut raw = Builder::default();
        properties::each(text, |key, value| raw.set(key, value.trim()));
        raw.finish()
    }
}

/// The relevant values, as the file contains them.
#[derive(Default)]
pub(super) struct Builder {
    lifecycle: LifecycleConf,
    instances: Option<u32>,
    dynamic: bool,
    dynamic_max: Option<u32>,
    dynamic_min: Option<u32>,
    dynamic_initial: Option<u32>,
    batch_size: Option<u32>,
    max_pending: Option<u32>,
    maximum: Option<u32>,
    memory: Option<u64>,
    overhead: Option<u64>,
    overhead_floor: Option<u64>,
    overhead_factor: Option<f64>,
    kubernetes_overhead_factor: Option<f64>,
    off_heap: bool,
    off_heap_bytes: Option<u64>,
    pyspark_memory: Option<u64>,
    python: bool,
    cores: Option<Quantity>,
    request_cores: Option<Quantity>,
    devices: Vec<(String, Device)>,
    in_driver_pod: bool,
    ui_disabled: bool,
    ui_port: Option<u16>,
    retained_dead: Option<u32>,
    ssl: Option<bool>,
    ssl_ui: Option<bool>,
    ssl_port: Option<u16>,
    ssl_ui_port: Option<u16>,
}

#[derive(Default)]
struct Device {
    amount: Option<u64>,
    vendor: Option<String>,
}

/// A port this far above another one, within the ports that users may open (`Utils.userPort`).
pub fn above(port: u16, offset: u16) -> u16 {
    let user_ports = u32::from(u16::MAX) + 1 - 1024;
    let at = (u32::from(port) + u32::from(offset)).saturating_sub(1024) % user_ports + 1024;
    u16::try_from(at).unwrap_or(port)
}

/// More kinds of devices than any node has: bounds the memory that a tenant's file can use.
const MAX_DEVICES: usize = 16;

impl Builder {
    pub(super) fn set(&mut self, key: &str, value: &str) {
        let number = || value.parse().ok();
        match key {
            "spark.executor.instances" => self.instances = number(),
            "spark.dynamicAllocation.enabled" => self.dynamic = value.eq_ignore_ascii_case("true"),
            "spark.dynamicAllocation.maxExecutors" => self.dynamic_max = number(),
            "spark.dynamicAllocation.minExecutors" => self.dynamic_min = number(),
            "spark.dynamicAllocation.initialExecutors" => self.dynamic_initial = number(),
            "spark.kubernetes.allocation.batch.size" => self.batch_size = number(),
            "spark.kubernetes.allocation.maxPendingPods" => self.max_pending = number(),
            "spark.kubernetes.allocation.maximum" => self.maximum = number(),
            "spark.executor.memory" => self.memory = mebibytes(value),
            "spark.executor.memoryOverhead" => self.overhead = mebibytes(value),
            "spark.executor.minMemoryOverhead" => self.overhead_floor = mebibytes(value),
            "spark.executor.memoryOverheadFactor" => self.overhead_factor = factor(value),
            "spark.kubernetes.memoryOverheadFactor" => self.kubernetes_overhead_factor = factor(value),
            "spark.memory.offHeap.enabled" => self.off_heap = value.eq_ignore_ascii_case("true"),
            "spark.memory.offHeap.size" => self.off_heap_bytes = bytes(value),
            "spark.executor.pyspark.memory" => self.pyspark_memory = mebibytes(value),
            "spark.kubernetes.resource.type" => self.python = value == "python",
            "spark.executor.cores" => self.cores = value.parse().ok(),
            "spark.kubernetes.executor.request.cores" => self.request_cores = value.parse().ok(),
            "spark.kubernetes.submitInDriver" => self.in_driver_pod = value.eq_ignore_ascii_case("true"),
            _ => {
                self.set_lifecycle(key, value);
                self.set_device(key, value);
                self.set_ui(key, value);
            }
        }
    }

    fn set_lifecycle(&mut self, key: &str, value: &str) {
        let time = |default: Duration| lifecycle_conf::time(value).unwrap_or(default);
        match key {
            "spark.kubernetes.executor.apiPollingInterval" => {
                self.lifecycle.polling_interval = time(self.lifecycle.polling_interval);
            }
            "spark.kubernetes.executor.missingPodDetectDelta" => {
                self.lifecycle.missing_pod_delta = time(self.lifecycle.missing_pod_delta);
            }
            "spark.kubernetes.executor.deleteOnTermination" => {
                self.lifecycle.delete_on_termination = !value.eq_ignore_ascii_case("false");
            }
            "spark.executor.maxNumFailures" => self.lifecycle.max_failures = value.parse().ok(),
            "spark.executor.failuresValidityInterval" => self.lifecycle.failures_expire = lifecycle_conf::time(value),
            _ => {}
        }
    }

    /// The UI's own SSL settings take precedence over those for all servers (`SSLOptions.parse`).
    fn set_ui(&mut self, key: &str, value: &str) {
        let is_true = value.eq_ignore_ascii_case("true");
        match key {
            "spark.ui.enabled" => self.ui_disabled = !is_true,
            "spark.ui.port" => self.ui_port = value.parse().ok(),
            "spark.ui.retainedDeadExecutors" => self.retained_dead = value.parse().ok(),
            "spark.ssl.enabled" => self.ssl = Some(is_true),
            "spark.ssl.ui.enabled" => self.ssl_ui = Some(is_true),
            "spark.ssl.port" => self.ssl_port = value.parse().ok(),
            "spark.ssl.ui.port" => self.ssl_ui_port = value.parse().ok(),
            _ => {}
        }
    }

    fn ui(&self) -> Ui {
        let port = self.ui_port.unwrap_or(UI_PORT);
        let has_tls = self.ssl_ui.or(self.ssl).unwrap_or(false);
        let tls_port = self.ssl_ui_port.or(self.ssl_port).unwrap_or_else(|| above(port, 400));
        let retained_dead = self.retained_dead.unwrap_or(RETAINED_DEAD);
        Ui { enabled: !self.ui_disabled, port, tls_port: has_tls.then_some(tls_port), retained_dead }
    }

    /// `spark.executor.resource.NAME.amount` and `.vendor`.
    fn set_device(&mut self, key: &str, value: &str) {
        let Some((name, field)) = key.strip_prefix("spark.executor.resource.").and_then(|rest| rest.rsplit_once('.'))
        else {
            return;
        };
        let at = match self.devices.iter().position(|(known, _)| known == name) {
            Some(at) => at,
            None if self.devices.len() < MAX_DEVICES => {
                self.devices.push((name.to_owned(), Device::default()));
                self.devices.len() - 1
            }
            None => return,
        };
        let Some((_, device)) = self.devices.get_mut(at) else { return };
        match field {
            "amount" => device.amount = value.parse().ok(),
            "vendor" => device.vendor = Some(value.to_owned()),
            _ => {}
        }
    }

    pub(super) fn finish(self) -> AppConf {
        let allocation = if self.dynamic {
            let min = self.dynamic_min.unwrap_or(0);
            let initial = self.dynamic_initial.unwrap_or(min);
            Allocation::Dynamic { min, initial: min.max(initial).max(self.instances.unwrap_or(0)) }
        } else {
            Allocation::Static { instances: self.instances.unwrap_or(DEFAULT_INSTANCES) }
        };
        let most = if self.dynamic { self.dynamic_max.unwrap_or(u32::MAX) } else { self.instances.unwrap_or(0) };
        AppConf {
            lifecycle: LifecycleConf { most_executors: most, ..self.lifecycle },
            allocation,
            batch_size: self.batch_size,
            max_pending: self.max_pending,
            maximum: self.maximum,
            executor: self.executor(),
            ui: self.ui(),
            in_driver_pod: self.in_driver_pod,
        }
    }

    /// `ResourceProfile.calculateOverHeadMemory` and `BasicExecutorFeatureStep`
    /// (`docs/spark.md#requests-and-limits`).
    fn executor(&self) -> ResourceList {
        let memory = self.memory.unwrap_or(1024);
        let factor = self.overhead_factor.or(self.kubernetes_overhead_factor).unwrap_or(0.1);
        let floor = self.overhead_floor.unwrap_or(384);
        let overhead = self.overhead.unwrap_or_else(|| ((factor * memory as f64) as u64).max(floor));
        let off_heap = if self.off_heap { self.off_heap_bytes.unwrap_or(0) >> 20 } else { 0 };
        let pyspark = if self.python { self.pyspark_memory.unwrap_or(0) } else { 0 };
        let total = memory.saturating_add(overhead).saturating_add(off_heap).saturating_add(pyspark);
        let mut list = ResourceList::default();
        list.set("cpu", self.request_cores.or(self.cores).unwrap_or(Quantity::units(1)));
        list.set("memory", Quantity::mebibytes(total));
        for (name, device) in &self.devices {
            if let (Some(amount), Some(vendor)) = (device.amount, &device.vendor)
                && amount > 0
            {
                list.set(&format!("{vendor}/{name}"), Quantity::units(amount));
            }
        }
        list
    }
}

/// A JVM size whose bare number means mebibytes, as whole mebibytes.
pub(crate) fn mebibytes(text: &str) -> Option<u64> {
    jvm_size(text, 1 << 20).map(|bytes| bytes >> 20)
}

/// A JVM size whose bare number means bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    jvm_size(text, 1)
}

/// `JavaUtils.byteStringAs`: digits and one of b, k, m, g, t, p with an optional trailing b or, since Spark 4, ib. Not a Kubernetes
/// quantity: `512m` is 512 MiB here.
fn jvm_size(text: &str, bare: u64) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = match suffix {
        "" => bare,
        "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        "t" | "tb" | "tib" => 1 << 40,
        "p" | "pb" | "pib" => 1 << 50,
        _ => return None,
    };
    // The JVM's numbers have a sign.
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| *bytes <= i64::MAX as u64)
}

fn factor(text: &str) -> Option<f64> {
    text.parse().ok().filter(|f: &f64| f.is_finite() && *f >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn executor(text: &str) -> String {
        AppConf::parse(text).executor.to_string()
    }

    #[test]
    fn ui_has_sparks_defaults_and_its_own_ssl_settings_come_first() {
        let ui = |text: &str| AppConf::parse(text).ui;
        assert_eq!(ui(""), Ui { enabled: true, port: 4040, tls_port: None, retained_dead: 100 });
        assert_eq!(ui("spark.ui.retainedDeadExecutors=5").retained_dead, 5);
        assert_eq!(ui("spark.ui.port=5050\nspark.ui.enabled=false"), Ui { enabled: false, port: 5050, ..ui("") });
        assert_eq!(ui("spark.ssl.enabled=true").tls_port, Some(4440));
        assert_eq!(ui("spark.ssl.enabled=true\nspark.ssl.ui.enabled=false").tls_port, None);
        assert_eq!(ui("spark.ssl.ui.enabled=true\nspark.ssl.port=1\nspark.ssl.ui.port=8443").tls_port, Some(8443));
        assert_eq!(ui("spark.ui.port=65500\nspark.ssl.ui.enabled=true").tls_port, Some(1388), "beyond 65535 it wraps");
    }

    #[test]
    fn executor_requests_equal_those_of_real_spark() {
        // Checked in runs of Spark 4.3.0 (`docs/spark.md#requests-and-limits`).
        assert_eq!(executor(""), "1 cpu, 1408Mi memory");
        assert_eq!(executor("spark.executor.memory=1500m"), "1 cpu, 1884Mi memory");
        assert_eq!(
            executor("spark.kubernetes.memoryOverheadFactor=0.4\nspark.kubernetes.resource.type=python"),
            "1 cpu, 1433Mi memory"
        );
        assert_eq!(executor("spark.executor.memory=8g\nspark.executor.cores=4"), "4 cpu, 9011Mi memory");
        assert_eq!(
            executor("spark.kubernetes.executor.request.cores=500m\nspark.executor.cores=2"),
            "500m cpu, 1408Mi memory"
        );
        assert_eq!(
            executor(
                "spark.memory.offHeap.enabled=true\nspark.memory.offHeap.size=1g\nspark.executor.memoryOverhead=512"
            ),
            "1 cpu, 2560Mi memory"
        );
        assert_eq!(
            executor("spark.executor.resource.gpu.amount=2\nspark.executor.resource.gpu.vendor=nvidia.com"),
            "1 cpu, 1408Mi memory, 2 nvidia.com/gpu"
        );
        assert_eq!(executor("spark.executor.pyspark.memory=1g"), "1 cpu, 1408Mi memory", "only Python applications");
        assert_eq!(
            executor(
                "spark.executor.pyspark.memory=1g\nspark.kubernetes.resource.type=python\nspark.executor.memoryOverheadFactor=0.1"
            ),
            "1 cpu, 2432Mi memory"
        );
    }

    #[test]
    fn dynamic_allocation_setting_determines_allocation() {
        let of = |text: &str| AppConf::parse(text).allocation;
        assert_eq!(of(""), Allocation::Static { instances: 2 });
        assert_eq!(of("spark.executor.instances=7"), Allocation::Static { instances: 7 });
        let dynamic = "spark.dynamicAllocation.enabled=true\n";
        assert_eq!(of(dynamic), Allocation::Dynamic { min: 0, initial: 0 });
        assert_eq!(
            of(&format!(
                "{dynamic}spark.dynamicAllocation.minExecutors=2\nspark.dynamicAllocation.initialExecutors=4\nspark.executor.instances=3"
            )),
            Allocation::Dynamic { min: 2, initial: 4 }
        );
    }

    #[test]
    fn jvm_size_strings_parse_and_invalid_ones_are_rejected() {
        assert_eq!(mebibytes("512m"), Some(512));
        assert_eq!(mebibytes("2g"), Some(2048));
        assert_eq!(mebibytes("1024"), Some(1024));
        assert_eq!(mebibytes("1048576k"), Some(1024));
        assert_eq!(mebibytes("2GB"), Some(2048));
        assert_eq!(mebibytes("1GiB"), Some(1024), "since Spark 4");
        assert_eq!(mebibytes("9999999999g"), None);
        assert_eq!(bytes("1024"), Some(1024));
        assert_eq!(mebibytes("1.5g"), None);
        assert_eq!(mebibytes("99999999999999999999g"), None);
        assert_eq!(mebibytes(""), None);
    }

    #[test]
    fn unreadable_values_count_as_unset() {
        let conf = AppConf::parse(
            "spark.executor.instances=many\nspark.executor.memory=lots\nspark.executor.memoryOverheadFactor=-1",
        );
        assert_eq!(conf, AppConf { executor: conf.executor.clone(), ..AppConf::default() });
        assert_eq!(conf.executor.to_string(), "1 cpu, 1408Mi memory");
    }

    #[test]
    fn lifecycle_settings_are_read_from_configuration() {
        let of = |text: &str| AppConf::parse(text).lifecycle;
        assert_eq!(of(""), LifecycleConf::default());
        let set = of(
            "spark.kubernetes.executor.apiPollingInterval=10s\nspark.kubernetes.executor.missingPodDetectDelta=5000\n\
             spark.kubernetes.executor.deleteOnTermination=FALSE\nspark.executor.maxNumFailures=7\n\
             spark.executor.failuresValidityInterval=1h\nspark.executor.instances=4",
        );
        assert_eq!(set.detection_time(), Duration::from_secs(30));
        assert!(!set.delete_on_termination && set.failure_limit() == 7 && set.most_executors == 4);
        assert_eq!(set.failures_expire, Some(Duration::from_secs(3600)));
        let dynamic = of("spark.dynamicAllocation.enabled=true\nspark.executor.instances=4");
        assert_eq!(dynamic.failure_limit(), u32::MAX, "there is no maximum");
    }

    #[test]
    fn allocation_limits_are_read_from_configuration() {
        let conf = AppConf::parse(
            "spark.kubernetes.allocation.batch.size=5\nspark.kubernetes.allocation.maxPendingPods=9\nspark.kubernetes.allocation.maximum=100",
        );
        assert_eq!((conf.batch_size, conf.max_pending, conf.maximum), (Some(5), Some(9), Some(100)));
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in any::<String>(), value in "[0-9a-z.]{0,30}") {
            AppConf::parse(&text);
            AppConf::parse(&format!("spark.executor.memory={value}\nspark.executor.resource.{value}.amount={value}"));
        }
    }
}
