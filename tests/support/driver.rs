//! A driver of the test cluster: its pod, its executors, and its REST API on loopback.

#![allow(dead_code, unreachable_pub, reason = "a module of several tests, each of which uses a part of it")]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::cluster::Cluster;
use super::{APP, executor, pod};

/// A driver's REST API on loopback, whose executors the test sets.
pub struct Driver {
    port: u16,
    rows: Arc<Mutex<Value>>,
    tasks: JoinSet<()>,
}

impl Driver {
    pub async fn start() -> Driver {
        Driver::start_at("127.0.0.1:0").await
    }

    /// A driver in client mode has no ConfigMap that states its port: it is found on 4040 to 4056.
    pub async fn start_at(address: &str) -> Driver {
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let rows = Arc::new(Mutex::new(json!([])));
        let shown = rows.clone();
        let metrics = json!({
            "counters": {format!("{APP}.driver.LiveListenerBus.queue.appStatus.numDroppedEvents"): {"count": 0}},
            "gauges": {format!("{APP}.driver.LiveListenerBus.queue.appStatus.size"): {"value": 0},
                format!("{APP}.driver.ExecutorAllocationManager.executors.numberTargetExecutors"): {"value": 7}},
        });
        let routes = Router::new()
            .route(
                &format!("/api/v1/applications/{APP}/allexecutors"),
                get(move || async move { shown.lock().unwrap().to_string() }),
            )
            .route(
                &format!("/api/v1/applications/{APP}/environment"),
                get(|| async { json!({"sparkProperties": [["spark.executor.instances", "3"]]}).to_string() }),
            )
            .route("/metrics/json/", get(move || async move { metrics.to_string() }))
            .fallback(|| async { (StatusCode::NOT_FOUND, "no such app") });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, routes).await.unwrap() });
        Driver { port, rows, tasks }
    }

    /// Its executors from now on.
    pub fn show(&self, rows: Value) {
        *self.rows.lock().unwrap() = rows;
    }

    /// Stops answering.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }

    /// A driver's pod at this address, its configuration, and two executors that run.
    pub async fn create_application(&self, cluster: &Cluster) {
        let port = self.port;
        let properties = format!("spark.executor.instances=2\nspark.ui.port={port}");
        cluster
            .create(json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "nb-conf", "namespace": cluster.namespace}, "data": {"spark.properties": properties}}))
            .await;
        let driver = cluster.pod_by(&cluster.client, &pod("nb-driver").driver_of(APP).conf_map("nb-conf")).await;
        for id in 1..=2 {
            let owned = executor(id).owned_by("Pod", "nb-driver", &driver.uid().unwrap());
            cluster.pod_by(&cluster.client, &owned).await;
            cluster.phase(&format!("nb-exec-{id}"), "Running").await;
        }
        cluster.run_at("nb-driver", "127.0.0.1").await;
    }
}

/// A row of its view: a registered or a removed executor.
pub fn row(id: u32, is_active: bool) -> Value {
    json!({"id": id.to_string(), "isActive": is_active, "addTime": "2026-11-21T02:13:42.022GMT", "removeReason": if is_active { None } else { Some("lost") }})
}
