//! Settings of the recovery of executors.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the recovery, for the whole cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// How drivers are polled.
    pub driver_view: DriverViews,
}

/// How the leader polls running drivers for their view of their executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverViews {
    /// How drivers are reached.
    pub access: DriverAccess,
    /// How often each driver is polled.
    pub interval: Duration,
}

impl Default for DriverViews {
    fn default() -> Self {
        DriverViews { access: DriverAccess::Pod, interval: Duration::from_secs(30) }
    }
}

/// How a driver's REST API is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DriverAccess {
    /// At the IP address of the driver's pod.
    Pod,
    /// Through the API server's proxy for pods, which needs the permission `get` on `pods/proxy`.
    Proxy,
    /// Drivers are not polled.
    None,
}
