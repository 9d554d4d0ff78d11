//! Executors in their JSON form, derived from a recorded one.

use serde_json::Value;
use usher_core::gang;
use usher_core::snapshot::ObservedPod;
use usher_spark::pod::Pod;

/// A recorded executor, as a template with placeholders for the fields that differ.
pub(crate) struct Recorded {
    /// The pod's JSON.
    pub(crate) text: String,
}

impl Recorded {
    /// An executor without a gang and without an owner.
    #[allow(dead_code, reason = "not every benchmark uses it")]
    pub(crate) fn read() -> Recorded {
        Recorded::with(|_| {})
    }

    /// The same, after a change of the pod.
    pub(crate) fn with(change: impl FnOnce(&mut Value)) -> Recorded {
        let review: Value = serde_json::from_slice(&crate::recorded::recorded()).unwrap();
        let mut pod = review["request"]["object"].clone();
        pod["metadata"]["name"] = "@name".into();
        pod["metadata"]["namespace"] = "default".into();
        pod["metadata"]["uid"] = "@uid".into();
        pod["metadata"]["resourceVersion"] = "@version".into();
        pod["metadata"]["labels"]["spark-app-selector"] = "@app".into();
        pod["metadata"]["labels"]["spark-exec-id"] = "@id".into();
        pod["metadata"]["labels"]["spark-version"] = "4.3.0".into();
        pod["spec"]["nodeName"] = "@node".into();
        pod["status"] = serde_json::json!({"phase": "@phase", "podIP": "10.1.2.3", "containerStatuses": [
            {"name": "spark-kubernetes-executor", "image": "spark:4.3.0", "state": "@state"}]});
        change(&mut pod);
        Recorded { text: pod.to_string() }
    }

    /// The executor with this number, one of `apps` applications.
    pub(crate) fn observation(&self, number: usize, apps: usize, phase: &str, version: usize) -> ObservedPod {
        let state = match phase {
            "Failed" => r#"{"terminated":{"exitCode":137,"reason":"Error","finishedAt":"2026-11-21T00:00:00Z"}}"#,
            "Running" => r#"{"running":{"startedAt":"2026-11-21T00:00:00Z"}}"#,
            _ => r#"{"waiting":{"reason":"ContainerCreating"}}"#,
        };
        let app = number % apps;
        let text = self
            .text
            .replace("@name", &format!("application-{app:05}-0123456789abcdef-exec-{}", number / apps))
            .replace("@uid", &format!("97f9289d-6793-4b51-9af9-{number:012}"))
            .replace("@version", &(1_000_000 + version).to_string())
            .replace("@app", &format!("spark-5ce218ea51d24d51bcb1500360d{app:05}"))
            .replace("@driver", &format!("driver-{app:05}"))
            .replace("\"@id\"", &format!("\"{}\"", number / apps))
            .replace("@node", &format!("ip-10-1-{}-{}.ec2.internal", number % 200, number % 7))
            .replace("@phase", phase)
            .replace("\"@state\"", state);
        ObservedPod::of(&Pod::read_whole(text.as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
    }
}
