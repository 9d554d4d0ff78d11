//! The application's size and lifecycle configuration in the driver's `spark.properties`.
//!
//! Of the whole file only numbers are kept, because it contains credentials too (`docs/spark.md#driver-configmap`). A tenant
//! writes the values: one that cannot be read makes the size unknown, and is never replaced by Spark's default.

use std::time::Duration;

use super::lifecycle_conf::{self, LifecycleConf};
use super::properties;
use super::quantity::Quantity;
use super::resources::ResourceList;
use super::version::SparkVersion;

/// Spark's default of `spark.executor.instances` on Kubernetes (`SchedulerBackendUtils.DEFAULT_NUMBER_EXECUTORS`).
const DEFAULT_INSTANCES: u32 = 2;

/// What settings say, or the key of the one that cannot be read: a typing error, or a reference such as `${spark.driver.memory}`.
pub type Setting<T> = Result<T, &'static str>;

/// The settings that decide how many executors an application creates, how fast, and how large.
#[derive(Clone, Debug, PartialEq)]
pub struct AppConf {
    /// How many executors the application requests, and whether that changes while it runs.
    pub allocation: Setting<Allocation>,
    /// `spark.kubernetes.allocation.batch.size`: executors in one wave.
    pub batch_size: Option<u32>,
    /// `spark.kubernetes.allocation.maxPendingPods`.
    pub max_pending: Option<u32>,
    /// `spark.kubernetes.allocation.maximum` (4.1): executors over the application's whole life.
    pub maximum: Option<u32>,
    /// What one executor of the default profile requests, by Spark's own arithmetic. Sidecars of a pod template are
    /// not included.
    pub executor: Setting<ResourceList>,
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

impl Default for AppConf {
    fn default() -> Self {
        AppConf {
            allocation: Ok(Allocation::default()),
            batch_size: None,
            max_pending: None,
            maximum: None,
            executor: Ok(ResourceList::default()),
            lifecycle: LifecycleConf::default(),
            ui: Ui::default(),
            in_driver_pod: false,
        }
    }
}

impl AppConf {
    /// Reads the text of `spark.properties` of a driver that runs: it accepted the sizes, in whichever units of its version.
    pub fn parse(text: &str) -> AppConf {
        let mut raw = Builder::default();
        properties::each(text, |key, value| raw.set(key, value.trim()));
        raw.finish()
    }

    /// Reads it as a driver of this version will. `resolve` returns the value of a setting that refers to others.
    pub fn parse_as<'r>(text: &str, version: SparkVersion, resolve: impl Fn(&str) -> Option<&'r str>) -> AppConf {
        let mut raw = Builder { version: Some(version), ..Builder::default() };
        properties::each(text, |key, value| {
            let resolved = if value.contains("${") { resolve(key) } else { None };
            raw.set(key, resolved.unwrap_or(value).trim());
        });
        raw.finish()
    }
}

/// The relevant values, as the file contains them.
#[derive(Default)]
pub(super) struct Builder {
    /// The version that reads them; `None` for a driver that runs, whichever it is.
    version: Option<SparkVersion>,
    lifecycle: LifecycleConf,
    instances: Option<Setting<u32>>,
    dynamic: Option<Setting<bool>>,
    dynamic_max: Option<Setting<u32>>,
    dynamic_min: Option<Setting<u32>>,
    dynamic_initial: Option<Setting<u32>>,
    batch_size: Option<Setting<u32>>,
    max_pending: Option<Setting<u32>>,
    maximum: Option<Setting<u32>>,
    memory: Option<Setting<u64>>,
    overhead: Option<Setting<u64>>,
    overhead_floor: Option<Setting<u64>>,
    overhead_factor: Option<Setting<f64>>,
    kubernetes_overhead_factor: Option<Setting<f64>>,
    off_heap: Option<Setting<bool>>,
    off_heap_bytes: Option<Setting<u64>>,
    pyspark_memory: Option<Setting<u64>>,
    python: bool,
    cores: Option<Setting<Quantity>>,
    request_cores: Option<Setting<Quantity>>,
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
    amount: Option<Setting<u64>>,
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

/// Stores settings of the size: the value, or the key of one that cannot be read.
macro_rules! of_size {
    ($conf:ident, $key:ident; $($known:literal => $field:ident = $value:expr,)+ _ => $other:expr) => {
        match $key {
            $($known => $conf.$field = Some($value.ok_or($known)),)+
            _ => $other,
        }
    };
}

impl Builder {
    pub(super) fn set(&mut self, key: &str, value: &str) {
        let version = self.version.unwrap_or(SparkVersion::NEWEST);
        let number = || value.parse().ok();
        let boolean = || value.to_ascii_lowercase().parse().ok();
        let size = || mebibytes(value, version);
        of_size! { self, key;
            "spark.executor.instances" => instances = number(),
            "spark.dynamicAllocation.enabled" => dynamic = boolean(),
            "spark.dynamicAllocation.maxExecutors" => dynamic_max = number(),
            "spark.dynamicAllocation.minExecutors" => dynamic_min = number(),
            "spark.dynamicAllocation.initialExecutors" => dynamic_initial = number(),
            "spark.kubernetes.allocation.batch.size" => batch_size = number(),
            "spark.kubernetes.allocation.maxPendingPods" => max_pending = number(),
            "spark.kubernetes.allocation.maximum" => maximum = number(),
            "spark.executor.memory" => memory = size(),
            "spark.executor.memoryOverhead" => overhead = size(),
            "spark.executor.minMemoryOverhead" => overhead_floor = size(),
            "spark.executor.memoryOverheadFactor" => overhead_factor = factor(value),
            "spark.kubernetes.memoryOverheadFactor" => kubernetes_overhead_factor = factor(value),
            "spark.memory.offHeap.enabled" => off_heap = boolean(),
            "spark.memory.offHeap.size" => off_heap_bytes = bytes(value, version),
            "spark.executor.pyspark.memory" => pyspark_memory = size(),
            "spark.executor.cores" => cores = value.parse().ok(),
            "spark.kubernetes.executor.request.cores" => request_cores = value.parse().ok(),
            _ => self.set_more(key, value)
        }
    }

    /// The settings with defaults that harm nothing.
    fn set_more(&mut self, key: &str, value: &str) {
        match key {
            "spark.kubernetes.resource.type" => self.python = value == "python",
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
            "amount" => device.amount = Some(value.parse().map_err(|_| "spark.executor.resource.*.amount")),
            "vendor" => device.vendor = Some(value.to_owned()),
            _ => {}
        }
    }

    pub(super) fn finish(self) -> AppConf {
        let is_dynamic = self.dynamic == Some(Ok(true));
        let max =
            if is_dynamic { known(self.dynamic_max).unwrap_or(u32::MAX) } else { known(self.instances).unwrap_or(0) };
        AppConf {
            allocation: self.allocation(),
            executor: self.executor(),
            ui: self.ui(),
            lifecycle: LifecycleConf { max_executors: max, ..self.lifecycle },
            batch_size: known(self.batch_size),
            max_pending: known(self.max_pending),
            maximum: known(self.maximum),
            in_driver_pod: self.in_driver_pod,
        }
    }

    fn allocation(&self) -> Setting<Allocation> {
        // An unknown limit of a wave makes the number of executors that can start together unknown.
        for limit in [self.batch_size, self.max_pending, self.maximum] {
            limit.transpose()?;
        }
        let instances = self.instances.transpose()?;
        if !self.dynamic.unwrap_or(Ok(false))? {
            return Ok(Allocation::Static { instances: instances.unwrap_or(DEFAULT_INSTANCES) });
        }
        let min = self.dynamic_min.unwrap_or(Ok(0))?;
        let initial = self.dynamic_initial.unwrap_or(Ok(min))?;
        Ok(Allocation::Dynamic { min, initial: min.max(initial).max(instances.unwrap_or(0)) })
    }

    /// `ResourceProfile.calculateOverHeadMemory` and `BasicExecutorFeatureStep`
    /// (`docs/spark.md#requests-and-limits`).
    fn executor(&self) -> Setting<ResourceList> {
        let memory = self.memory.unwrap_or(Ok(1024))?;
        let factor = self.overhead_factor.or(self.kubernetes_overhead_factor).unwrap_or(Ok(0.1))?;
        let floor = self.overhead_floor.unwrap_or(Ok(384))?;
        let overhead = self.overhead.unwrap_or_else(|| Ok(((factor * memory as f64) as u64).max(floor)))?;
        let off_heap = match self.off_heap.unwrap_or(Ok(false))? {
            true => self.off_heap_bytes.unwrap_or(Ok(0))? >> 20,
            false => 0,
        };
        let pyspark = if self.python { self.pyspark_memory.unwrap_or(Ok(0))? } else { 0 };
        let total = memory.saturating_add(overhead).saturating_add(off_heap).saturating_add(pyspark);
        let mut list = ResourceList::default();
        let cores = self.request_cores.or(self.cores);
        list.set("cpu", cores.unwrap_or(Ok(Quantity::units(1)))?);
        list.set("memory", Quantity::mebibytes(total));
        for (name, device) in &self.devices {
            if let (Some(amount), Some(vendor)) = (device.amount, &device.vendor)
                && amount? > 0
            {
                list.set(&format!("{vendor}/{name}"), Quantity::units(amount?));
            }
        }
        Ok(list)
    }
}

fn known<T>(setting: Option<Setting<T>>) -> Option<T> {
    setting?.ok()
}

/// A JVM size whose bare number means mebibytes, as whole mebibytes.
pub fn mebibytes(text: &str, version: SparkVersion) -> Option<u64> {
    jvm_size(text, 1 << 20, version).map(|bytes| bytes >> 20)
}

/// A JVM size whose bare number means bytes.
pub fn bytes(text: &str, version: SparkVersion) -> Option<u64> {
    jvm_size(text, 1, version)
}

/// The first version that reads `2Gi` and `2GiB` (SPARK-55051): 4.1.4 refuses them, 4.2.0 does not.
const BINARY_UNITS_SINCE: SparkVersion = SparkVersion::new(4, 2, 0);

/// `JavaUtils.byteStringAs`: digits and one of b, k, m, g, t, p with an optional trailing b or, since Spark 4.2, i or ib. Not a
/// Kubernetes quantity: `512m` is 512 MiB here.
fn jvm_size(text: &str, bare: u64, version: SparkVersion) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let suffix = match suffix.strip_suffix("ib").or_else(|| suffix.strip_suffix('i')) {
        Some(letter) if version >= BINARY_UNITS_SINCE && letter.len() == 1 && letter != "b" => letter,
        _ => suffix,
    };
    let unit = match suffix {
        "" => bare,
        "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        "t" | "tb" => 1 << 40,
        "p" | "pb" => 1 << 50,
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
        AppConf::parse(text).executor.unwrap().to_string()
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
        let allocation = |text: &str| AppConf::parse(text).allocation.unwrap();
        assert_eq!(allocation(""), Allocation::Static { instances: 2 });
        assert_eq!(allocation("spark.executor.instances=7"), Allocation::Static { instances: 7 });
        let dynamic = "spark.dynamicAllocation.enabled=true\n";
        assert_eq!(allocation(dynamic), Allocation::Dynamic { min: 0, initial: 0 });
        assert_eq!(
            allocation(&format!(
                "{dynamic}spark.dynamicAllocation.minExecutors=2\nspark.dynamicAllocation.initialExecutors=4\nspark.executor.instances=3"
            )),
            Allocation::Dynamic { min: 2, initial: 4 }
        );
    }

    #[test]
    fn jvm_size_strings_parse_and_invalid_ones_are_rejected() {
        let read = |text: &str| mebibytes(text, SparkVersion::NEWEST);
        assert_eq!(read("512m"), Some(512));
        assert_eq!(read("2g"), Some(2048));
        assert_eq!(read("1024"), Some(1024));
        assert_eq!(read("1048576k"), Some(1024));
        assert_eq!(read("2GB"), Some(2048));
        assert_eq!(read(" 5g "), Some(5120));
        assert_eq!(bytes("1024", SparkVersion::NEWEST), Some(1024));
        assert_eq!(bytes("7b", SparkVersion::NEWEST), Some(7));
        // Each with `JavaUtils.byteStringAs` of 4.3.0.
        for bad in [
            "9999999999g",
            "1.5g",
            "99999999999999999999g",
            "",
            "g",
            "5 g",
            "1i",
            "1ib",
            "1bi",
            "1gbi",
            "1gbib",
            "1bb",
            "-5m",
            "+5m",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    /// SPARK-55051: each with `JavaUtils.byteStringAs` of 4.3.0, 4.2.0, 4.1.4 and 3.5.9.
    #[test]
    fn units_of_kubernetes_are_sizes_since_4_2() {
        for (text, size) in
            [("2Gi", 2048), ("2gi", 2048), ("512Mi", 512), ("1GiB", 1024), ("1Ti", 1 << 20), ("2048ki", 2)]
        {
            assert_eq!(mebibytes(text, SparkVersion::new(4, 2, 0)), Some(size), "{text}");
            assert_eq!(mebibytes(text, SparkVersion::new(4, 1, 4)), None, "{text}");
        }
        assert_eq!(executor("spark.executor.memory=4Gi\nspark.executor.memoryOverhead=1Gi"), "1 cpu, 5Gi memory");
        let old = AppConf::parse_as("spark.executor.memory=4Gi", SparkVersion::new(3, 5, 9), |_| None);
        assert_eq!(old.executor, Err("spark.executor.memory"));
    }

    #[test]
    fn setting_that_cannot_be_read_makes_size_unknown() {
        const KEYS: [&str; 18] = [
            "spark.executor.instances",
            "spark.dynamicAllocation.enabled",
            "spark.dynamicAllocation.maxExecutors",
            "spark.dynamicAllocation.minExecutors",
            "spark.dynamicAllocation.initialExecutors",
            "spark.kubernetes.allocation.batch.size",
            "spark.kubernetes.allocation.maxPendingPods",
            "spark.kubernetes.allocation.maximum",
            "spark.executor.memory",
            "spark.executor.memoryOverhead",
            "spark.executor.minMemoryOverhead",
            "spark.executor.memoryOverheadFactor",
            "spark.kubernetes.memoryOverheadFactor",
            "spark.memory.offHeap.enabled",
            "spark.memory.offHeap.size",
            "spark.executor.pyspark.memory",
            "spark.executor.cores",
            "spark.kubernetes.executor.request.cores",
        ];
        for key in KEYS {
            // Spark substitutes a reference only when it reads the setting.
            let text =
                format!("spark.dynamicAllocation.enabled=true\nspark.memory.offHeap.enabled=true\n{key}=${{spark.x}}");
            let conf = AppConf::parse(&format!("spark.kubernetes.resource.type=python\n{text}"));
            let unread: Vec<&str> = conf.allocation.err().into_iter().chain(conf.executor.clone().err()).collect();
            // The maximum says nothing of the size with which an application starts.
            let expected = if key == "spark.dynamicAllocation.maxExecutors" { vec![] } else { vec![key] };
            assert_eq!(unread, expected);
        }
        let device = "spark.executor.resource.gpu.vendor=nvidia.com\nspark.executor.resource.gpu.amount=two";
        assert_eq!(AppConf::parse(device).executor, Err("spark.executor.resource.*.amount"));
        let many = AppConf::parse("spark.executor.instances=many");
        assert_eq!((many.allocation, many.executor.is_ok()), (Err("spark.executor.instances"), true));
        // Spark reads neither of them.
        let unused = "spark.memory.offHeap.size=lots\nspark.executor.pyspark.memory=lots";
        assert_eq!(executor(unused), "1 cpu, 1408Mi memory");
    }

    #[test]
    fn lifecycle_settings_are_read_from_configuration() {
        let lifecycle = |text: &str| AppConf::parse(text).lifecycle;
        assert_eq!(lifecycle(""), LifecycleConf::default());
        let set = lifecycle(
            "spark.kubernetes.executor.apiPollingInterval=10s\nspark.kubernetes.executor.missingPodDetectDelta=5000\n\
             spark.kubernetes.executor.deleteOnTermination=FALSE\nspark.executor.maxNumFailures=7\n\
             spark.executor.failuresValidityInterval=1h\nspark.executor.instances=4",
        );
        assert_eq!(set.detection_time(), Duration::from_secs(30));
        assert!(!set.delete_on_termination && set.failure_limit() == 7 && set.max_executors == 4);
        assert_eq!(set.failures_expire, Some(Duration::from_secs(3600)));
        let dynamic = lifecycle("spark.dynamicAllocation.enabled=true\nspark.executor.instances=4");
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
