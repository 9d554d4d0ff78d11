//! Pages from reports.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Names that would do harm if they were written as they are.
const HOSTILE: [&str; 4] = [
    "<script>alert(1)</script>",
    "\" onload=\"alert(1)",
    "a\u{202e}gnp.exe\u{2066}\u{1b}[2J",
    "'><img src=x onerror=alert(1)>&amp;",
];

fn now() -> Timestamp {
    "2026-11-24T10:00:00Z".parse().unwrap()
}

fn replica() -> ReplicaReport {
    ReplicaReport {
        identity: "usher-1_ab12".to_owned(),
        namespace: "usher".to_owned(),
        state: "leader",
        leader: None,
        is_complete: true,
        unseen: None,
        deletions: "no pods are deleted".to_owned(),
        withheld: Some("3 by orphans".to_owned()),
        policies_differ: Some(2),
        certificate_until: Some("2026-12-24T10:00:00Z".to_owned()),
        port: 6060,
        links: Links::default(),
        since: "2026-11-24T08:00:00Z".to_owned(),
    }
}

fn document(page: &Page<'_>, replica: &ReplicaReport) -> String {
    page.document(&page.live(replica, now()))
}

/// An application in which everything is wrong, and every text is this.
fn application(namespace: &str, app: &str, text: &str) -> AppReport {
    let value = json!({"namespace": namespace, "app": app,
        "driver": {"liveness": "alive", "pod": text, "state": "running", "node": text, "why": text},
        "executors": {"running": 3, "pending": 2}, "target": {"count": 9, "atLeast": false, "source": "spark.executor.instances"},
        "shortage": {"target": 9, "source": "spark.executor.instances", "running": 3, "pending": 2, "since": "2026-11-24T09:58:00Z",
            "causes": [{"cause": "unschedulable", "count": 6, "message": text}]},
        "groups": [{"name": text, "scheduler": "volcano", "size": 9, "started": false, "phase": text, "since": text, "bound": 3}],
        "findings": [{"rule": "stuck", "pod": text, "uid": "u", "since": text, "message": text, "outcome": text}],
        "deletions": [{"rule": "stuck", "pod": text, "uid": "u", "at": text, "message": text}],
        "troubled": [{"pod": text, "uid": "u", "id": 1, "state": "pending", "node": text, "why": text}],
        "ended": {"oom-killed": 2},
        "exits": [{"pod": text, "uid": "v", "id": 2, "node": text, "at": "2026-11-24T09:57:00Z", "noticed": text, "cause": "oom-killed",
            "text": "out of memory", "detail": text, "isAbnormal": true, "blame": "application", "exitCode": 137, "recovery": text,
            "spark": {"exitCode": 137, "causedByApp": true, "message": text}}]});
    serde_json::from_value(value).unwrap()
}

fn healthy(namespace: &str, app: &str) -> AppReport {
    let AppReport { driver, .. } = application(namespace, app, "driver");
    AppReport {
        driver,
        shortage: None,
        groups: vec![],
        findings: vec![],
        deletions: vec![],
        troubled: vec![],
        exits: vec![],
        ..application(namespace, app, "x")
    }
}

fn lifetime(id: u64, created: &str, started: Option<&str>, ended: Option<&str>, cause: Option<&str>) -> Value {
    json!({"pod": format!("exec-{id}"), "id": id, "created": created, "started": started, "ended": ended,
        "state": if ended.is_some() { "failed" } else if started.is_some() { "running" } else { "pending" }, "cause": cause,
        "abnormal": cause.is_some()})
}

fn query(text: &str) -> AppsQuery {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    let pairs: serde_json::Map<String, Value> =
        pairs.map(|(name, value)| (name.to_owned(), value.replace("%20", " ").into())).collect();
    serde_json::from_value(pairs.into()).unwrap()
}

fn of(namespace: &str, name: &str, range: &str) -> AppQuery {
    AppQuery { namespace: namespace.to_owned(), name: name.to_owned(), range: range.to_owned() }
}

fn names(apps: &[AppReport], text: &str) -> Vec<String> {
    apps::Selection::of(apps, &query(text)).shown.into_iter().map(|app| app.app.clone()).collect()
}

#[test]
fn applications_that_lack_executors_come_first_with_the_cause_and_since_when() {
    let apps = [healthy("a", "spark-1"), application("b", "spark-2", "0/3 nodes: Insufficient cpu")];
    let page = document(&Page::Apps(&apps, &AppsQuery::default()), &replica());
    let (short, well) = (page.find(">spark-2<").unwrap(), page.find(">spark-1<").unwrap());
    assert!(short < well, "{page}");
    for text in [
        "No node has room: 0/3 nodes: Insufficient cpu",
        ">for 2 min<",
        "3 of 9",
        "<bdi>lacks 6</bdi>",
        "data-copy=\"spark-2\"",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
}

#[test]
fn applications_are_searched_filtered_and_ordered() {
    let mut gone = healthy("c", "spark-3");
    (gone.driver.state, gone.driver.liveness) = (None, "gone".to_owned());
    (gone.started, gone.executors) = (Some("2026-11-24T09:00:00Z".to_owned()), [("running".to_owned(), 1)].into());
    let mut over = healthy("d", "spark-4");
    (over.driver.state, over.driver.liveness, over.executors) =
        (Some("succeeded".to_owned()), "gone".to_owned(), [].into());
    let mut full = healthy("a", "spark-1");
    full.executors.insert("running".to_owned(), 9);
    let apps = [full, application("b", "spark-2", "etl-driver"), gone, over];
    for (text, expected) in [
        ("", vec!["spark-2", "spark-3", "spark-1"]),
        ("q=ETL", vec!["spark-2"]),
        ("q=%20spark-3%20", vec!["spark-3"]),
        ("q=none", vec![]),
        ("q=spark-4", vec!["spark-4"]),
        ("namespace=a", vec!["spark-1"]),
        ("status=wrong", vec!["spark-2", "spark-3"]),
        ("status=lacks", vec!["spark-2"]),
        ("status=findings", vec!["spark-2"]),
        ("status=failed", vec!["spark-3"]),
        ("status=exits", vec!["spark-2"]),
        ("status=ended", vec!["spark-4"]),
        ("status=ended&q=spark-1", vec![]),
        ("status=all", vec!["spark-2", "spark-3", "spark-1", "spark-4"]),
        ("status=unheard-of&sort=unheard-of&page=x", vec!["spark-2", "spark-3", "spark-1"]),
        ("status=active&q=spark-4", vec![]),
        ("sort=-status", vec!["spark-1", "spark-3", "spark-2"]),
        ("sort=name", vec!["spark-1", "spark-2", "spark-3"]),
        ("sort=-name", vec!["spark-3", "spark-2", "spark-1"]),
        ("sort=-namespace", vec!["spark-3", "spark-2", "spark-1"]),
        ("sort=executors", vec!["spark-1", "spark-2", "spark-3"]),
        ("sort=-executors", vec!["spark-3", "spark-2", "spark-1"]),
        ("sort=why", vec!["spark-2", "spark-3", "spark-1"]),
        ("sort=since", vec!["spark-2", "spark-1", "spark-3"]),
        ("sort=started", vec!["spark-3", "spark-1", "spark-2"]),
    ] {
        assert_eq!(names(&apps, text), expected, "{text}");
    }
}

#[test]
fn numbers_are_those_of_what_their_links_show() {
    let apps = [application("a", "spark-1", "x"), application("b", "spark-2", "x"), healthy("b", "spark-3")];
    let page = Page::Apps(&apps, &query("namespace=a")).live(&replica(), now());
    assert!(page.contains("<span>Lack executors</span> <strong>1</strong>"), "{page}");
    assert!(page.contains("href=\"./?namespace=a&amp;status=lacks\""), "{page}");
    // A number of its own for each direction, and those without a value last in both.
    let order = |text: &str| names(&apps, text);
    assert_eq!((order("sort=since"), order("sort=-since")), (order("sort=why"), order("sort=-why")));
    assert_eq!(order("sort=-since").last().map(String::as_str), Some("spark-3"));
    let page = Page::Apps(&apps, &query("sort=started")).live(&replica(), now());
    assert!(page.contains("col-started\" aria-sort=\"descending\""), "{page}");
}

#[test]
fn a_page_has_a_hundred_applications_and_links_keep_the_search() {
    let apps: Vec<AppReport> = (0..250).map(|number| healthy("a", &format!("spark-{number:03}"))).collect();
    for (text, first, count) in [("", "spark-000", 100), ("page=3", "spark-200", 50), ("page=99", "spark-200", 50)] {
        let shown = names(&apps, text);
        assert_eq!((shown[0].as_str(), shown.len()), (first, count), "{text}");
    }
    let page = document(&Page::Apps(&apps, &query("q=spark&sort=name&page=2")), &replica());
    for link in [
        "./?q=spark&amp;sort=name&amp;page=1",
        "./?q=spark&amp;sort=name&amp;page=3",
        "./?q=spark&amp;sort=-name\"",
        "./?q=spark&amp;status=lacks&amp;sort=name\"",
    ] {
        assert!(page.contains(link), "{link}");
    }
}

#[test]
fn an_application_has_its_gang_shortage_findings_and_the_lives_of_its_executors() {
    let lifetimes = json!([
        lifetime(
            1,
            "2026-11-24T09:00:00Z",
            Some("2026-11-24T09:15:00Z"),
            Some("2026-11-24T09:30:00Z"),
            Some("oom-killed")
        ),
        lifetime(2, "2026-11-24T09:00:00Z", Some("2026-11-24T09:30:00Z"), None, None),
        lifetime(3, "2026-11-24T09:30:00Z", None, None, None),
    ]);
    let timeline = json!([{"namespace": "a", "app": "spark-1", "executors": lifetimes, "omitted": 7}]);
    let report = WhyReport {
        apps: vec![application("a", "spark-1", "text")],
        timelines: serde_json::from_value(timeline).unwrap(),
        ..WhyReport::default()
    };
    let all = of("a", "spark-1", "");
    let page = Page::App(&report, &all);
    let html = document(&page, &replica());
    for text in [
        "Lacks 6 of 9 executors <time",
        "for 2 min",
        "What to do: </strong>Free the resource",
        "data-copy=\"kubectl -n a logs text\"",
        "out of memory (container)",
        "3 of 9 on a node",
        "waits",
        "aria-label=\"created 2026-11-24T09:00:00Z, started 2026-11-24T09:15:00Z, ended 2026-11-24T09:30:00Z\"",
        "aria-label=\"created 2026-11-24T09:30:00Z\"",
        "<rect class=\"memory\" x=\"25.00%\" y=\"1\" width=\"25.00%\"",
        "<rect class=\"pattern memory\" x=\"25.00%\" y=\"1\" width=\"25.00%\"",
        // Its color and its pattern are seen however short it ran.
        "<rect class=\"pattern memory\" x=\"25.00%\" y=\"1\" width=\"8\"",
        "<rect class=\"pending\" x=\"50.00%\" y=\"4\" width=\"50.00%\"",
        "<span>60 min ago</span><span>30 min ago</span><span>now</span>",
        "<time datetime=\"2026-11-24T09:57:00Z\" title=\"2026-11-24T09:57:00Z\" data-age=\"180\">3 min ago</time> <span class=\"at\">09:57:00Z</span>",
        "app?namespace=a&amp;name=spark-1&amp;range=1h",
        "7 others are not shown",
        "Findings of recovery",
        "Deleted by recovery",
    ] {
        assert!(html.contains(text), "{text}: {html}");
    }
    assert!(page.is_found());
    let nothing = WhyReport::default();
    // Only those that existed in the last ten minutes, from then on.
    let recent = of("a", "spark-1", "10m");
    let html = Page::App(&report, &recent).live(&replica(), now());
    assert!(
        !html.contains("exec-1") && html.contains("<rect class=\"running\" x=\"0.00%\" y=\"1\" width=\"100.00%\""),
        "{html}"
    );
    let other = of("a", "spark-9", "");
    let missing = Page::App(&nothing, &other);
    assert!(!missing.is_found() && document(&missing, &replica()).contains("No application"));
}

#[test]
fn follower_says_what_it_does_not_know_and_where_the_leader_is() {
    let follower = ReplicaReport { state: "follower", leader: Some("usher-2_ff00".to_owned()), ..replica() };
    let page = document(&Page::Cost(&CostReport::default()), &follower);
    assert!(
        page.contains("This replica follows") && page.contains("kubectl -n usher port-forward pod/usher-2 6060:6060"),
        "{page}"
    );
    let alone = ReplicaReport { state: "no-leader", is_complete: false, ..replica() };
    let page = document(&Page::Apps(&[], &AppsQuery::default()), &alone);
    assert!(page.contains("No replica leads") && page.contains("has not read the whole cluster"));
    assert!(!document(&Page::Replica, &replica()).contains("class=\"caution\""));
    let blind = ReplicaReport { unseen: Some("pods since <noon>".to_owned()), ..replica() };
    let page = document(&Page::Apps(&[], &AppsQuery::default()), &blind);
    assert!(page.contains("This replica does not see ") && page.contains("pods since &lt;noon&gt;"), "{page}");
    let page = document(&Page::Replica, &replica());
    assert!(page.contains("no pods are deleted") && page.contains("3 by orphans"), "{page}");
    assert!(page.contains("differences: 2") && page.contains("<code>spark-usher doctor -n "), "{page}");
    assert!(document(&Page::Replica, &replica()).contains("expires in 30 days"));
}

#[test]
fn a_target_that_is_not_known_is_not_shown_as_nothing_lacking() {
    let mut unknown = healthy("a", "spark-1");
    unknown.target = None;
    let mut least = healthy("a", "spark-2");
    least.target.as_mut().unwrap().at_least = true;
    let mut short = application("a", "spark-3", "x");
    short.target.as_mut().unwrap().at_least = true;
    let apps = [unknown, least, short, healthy("a", "spark-4")];
    let shown: Vec<String> = apps.iter().map(|app| app.lacking().text()).collect();
    assert_eq!(shown, ["?", "?", "≥6", "0"]);
    let page = Page::Apps(&apps, &AppsQuery::default()).live(&replica(), now());
    assert!(page.contains("<span>Unknown</span> <strong>2</strong>") && page.contains("3 of ≥9"), "{page}");
    assert!(page.contains("3 of –") && !page.contains("0 of"), "{page}");
    assert_eq!(names(&apps, "status=unknown"), ["spark-1", "spark-2"]);
    // A follower does not know what recovery found.
    let follower = ReplicaReport { state: "follower", ..replica() };
    let page = Page::Apps(&apps, &AppsQuery::default()).live(&follower, now());
    assert!(
        page.contains("<span>With findings</span> <strong>–</strong>")
            && page.contains("shortages under dynamic allocation"),
        "{page}"
    );
}

#[test]
fn every_cause_of_a_shortage_is_in_its_row() {
    let mut app = application("a", "spark-1", "");
    let shortage = app.shortage.as_mut().unwrap();
    shortage.causes = serde_json::from_value(json!([{"cause": "unschedulable", "count": 4, "message": "lacks cpu"},
        {"cause": "starting", "count": 2, "message": "m"}]))
    .unwrap();
    shortage.exits = "2 jvm-oom".to_owned();
    let page = Page::Apps(&[app], &AppsQuery::default()).live(&replica(), now());
    assert!(
        page.contains("No node has room (4): lacks cpu; starting (2); exits within 10 minutes: 2 jvm-oom"),
        "{page}"
    );
}

#[test]
fn application_of_which_only_exits_are_left_has_no_unknown_driver() {
    let mut app = healthy("a", "spark-1");
    (app.driver.state, app.driver.liveness, app.executors) = (None, "unknown".to_owned(), [].into());
    let page = Page::Apps(&[app.clone()], &query("status=ended")).live(&replica(), now());
    assert!(page.contains("badge over") && page.contains("ended"), "{page}");
    let page = Page::Apps(&[app.clone()], &AppsQuery::default()).live(&replica(), now());
    assert!(page.contains("1 application that has ended") && !page.contains("spark-1"), "{page}");
    // Live executors that nothing would delete are said to be so.
    app.executors.insert("running".to_owned(), 2);
    app.unowned = 2;
    let page = Page::Apps(&[app], &AppsQuery::default()).live(&replica(), now());
    assert!(page.contains("2 without an ownerReference to a driver, and the driver is not known"), "{page}");
}

#[test]
fn an_application_links_to_its_spark_ui_and_history() {
    let links = Links {
        spark_ui: Some("https://ui.example/{namespace}/{driver}/".parse().unwrap()),
        history_server: Some("https://history.example/history/{id}?q={name}".parse().unwrap()),
    };
    let replica = ReplicaReport { links, ..replica() };
    let named = |text: &str| AppReport { name: "a b/../c\"".to_owned(), ..application("a", "spark-1", text) };
    let page = |app: AppReport| {
        let report = WhyReport { apps: vec![app], ..WhyReport::default() };
        Page::App(&report, &of("a", "spark-1", "")).live(&replica, now())
    };
    let running = page(named("etl-driver"));
    assert!(running.contains("href=\"https://ui.example/a/etl-driver/\""), "{running}");
    // A tenant's text stays within its part of the address.
    let history = "href=\"https://history.example/history/spark-1?q=a%20b%2F..%2Fc%22\"";
    assert!(running.contains(history), "{running}");
    let mut over = named("etl-driver");
    over.driver.state = Some("succeeded".to_owned());
    let over = page(over);
    assert!(!over.contains("ui.example") && over.contains(history), "{over}");
    let mut unknown = named("etl-driver");
    unknown.driver.pod = None;
    assert!(!page(unknown).contains("ui.example"));
}

#[test]
fn executors_with_the_same_trouble_are_listed_together() {
    let mut app = application("a", "spark-1", "no room");
    let mut other = app.troubled[0].clone();
    other.pod = "exec-2".to_owned();
    app.troubled.push(other);
    let report = WhyReport { apps: vec![app], ..WhyReport::default() };
    let page = Page::App(&report, &of("a", "spark-1", "")).live(&replica(), now());
    let list = page.split("Executors in trouble").nth(1).unwrap().split("</ul>").next().unwrap();
    assert_eq!(list.matches("<li>").count(), 1, "{list}");
    assert!(list.contains("exec-2") && list.ends_with("(<bdi>pending</bdi>): <bdi>no room</bdi></li>"), "{list}");
}

#[test]
fn nodes_and_costs_are_shown() {
    let nodes = json!({"total": 50, "suspect": 1, "avoided": 1, "nodes": [{"name": "node-7", "exists": true, "kubelet": "v1.34.1",
        "ready": true, "cordoned": false, "avoided": true, "faults": {"out-of-resource": 3}, "schedulers": {"volcano": 3, "default-scheduler": 9},
        "pods": 2, "excluded": 1, "suspicion": {"since": "2026-11-24T09:58:00Z", "until": "2026-11-24T11:00:00Z", "executors": 3,
            "applications": 2, "kind": "out-of-resource", "text": "Its kubelet refused them.", "cure": "Use one scheduler."},
        "recent": [{"at": "2026-11-24T09:57:00Z", "namespace": "a", "app": "spark-1", "pod": "exec-1", "kind": "out-of-resource",
            "resource": "cpu", "message": "OutOfcpu", "counts": true}]}]});
    let nodes: NodesReport = serde_json::from_value(nodes).unwrap();
    let page = document(&Page::Nodes(&nodes), &replica());
    for text in
        ["node-7", "suspect", "Use one scheduler.", "default-scheduler", "OutOfcpu", "app?namespace=a&amp;name=spark-1"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    let row = json!({"namespace": "a", "app": "spark-1", "name": "nightly", "cause": "gang", "coreSeconds": 7200.0, "byteSeconds": 1.0});
    let costs = json!({"since": "2026-11-24T09:00:00Z", "namespaces": [row], "applications": [row], "givenBack": []});
    let costs: CostReport = serde_json::from_value(costs).unwrap();
    let page = document(&Page::Cost(&costs), &replica());
    assert!(page.contains("<dd>2.00</dd>") && page.contains(">2.00</td>") && page.contains(">nightly<"), "{page}");
    assert!(page.contains("while its gang has not started"), "{page}");
    // What would be shown as 0.00 is counted, and not listed.
    let little =
        json!({"namespace": "tiny", "app": "spark-2", "cause": "stuck", "coreSeconds": 1.0, "byteSeconds": 1.0});
    let costs = json!({"since": "2026-11-24T09:00:00Z", "namespaces": [row, little], "applications": [row, little], "givenBack": []});
    let costs: CostReport = serde_json::from_value(costs).unwrap();
    let all = document(&Page::Cost(&costs), &replica());
    assert!(!all.contains("tiny") && all.contains("less than 0.01 core hours"), "{all}");
    // The sum of nothing.
    assert!(page.contains("given back</dt><dd>0.00</dd>"), "{page}");
}

#[test]
fn time_alone_does_not_change_a_page_and_everything_else_does() {
    let (query, replica) = (AppsQuery::default(), replica());
    let fingerprint = |apps: &[AppReport]| Page::Apps(apps, &query).fingerprint(&replica);
    let one = [application("a", "spark-1", "x")];
    assert_eq!(fingerprint(&one), fingerprint(&one));
    assert_ne!(fingerprint(&one), fingerprint(&[application("a", "spark-1", "y")]));
    // The numbers above the table are of all applications, also of those on other pages.
    let many: Vec<AppReport> = (0..101).map(|number| healthy("a", &format!("spark-{number:03}"))).collect();
    let mut other = many.clone();
    other[100].executors.insert("running".to_owned(), 4);
    assert_ne!(fingerprint(&many), fingerprint(&other));
    let follower = ReplicaReport { state: "follower", ..replica.clone() };
    assert_ne!(fingerprint(&one), Page::Apps(&one, &query).fingerprint(&follower));
}

/// No element, attribute or character of this text is in a page as it is written.
fn harmless_in(html: &str) {
    for bad in ["<script>alert", "onload=\"", "<img", "\u{202e}", "\u{2066}", "\u{1b}"] {
        assert!(!html.contains(bad), "{bad:?} in {html}");
    }
}

#[test]
fn texts_of_tenants_do_no_harm() {
    for text in HOSTILE.map(str::to_owned).into_iter().chain(["x".repeat(253)]) {
        let apps = [application(&text, &text, &text)];
        let report = WhyReport { apps: apps.to_vec(), ..WhyReport::default() };
        let nodes = json!({"total": 1, "suspect": 0, "avoided": 0, "nodes": [{"name": text, "exists": true, "kubelet": text, "ready": true,
            "cordoned": false, "avoided": false, "faults": {}, "schedulers": {&text: 1}, "pods": 1, "excluded": 0, "suspicion": null,
            "recent": [{"at": text, "namespace": text, "app": text, "pod": text, "kind": "refused", "resource": text, "message": text,
                "counts": true}]}]});
        let nodes: NodesReport = serde_json::from_value(nodes).unwrap();
        let row = json!({"namespace": text, "app": text, "cause": "gang", "coreSeconds": 1.0, "byteSeconds": 1.0});
        let costs = json!({"since": text, "namespaces": [row], "applications": [row], "givenBack": [row]});
        let costs: CostReport = serde_json::from_value(costs).unwrap();
        let query = AppsQuery { q: text.clone(), namespace: text.clone(), ..AppsQuery::default() };
        for page in [
            Page::Apps(&apps, &query),
            Page::Apps(&apps, &AppsQuery::default()),
            Page::App(&report, &of(&text, &text, &text)),
            Page::App(&WhyReport::default(), &of(&text, &text, &text)),
            Page::Nodes(&nodes),
            Page::Cost(&costs),
        ] {
            harmless_in(&document(&page, &replica()));
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_only_text(text in any::<String>()) {
        let apps = [application(&text, &text, &text)];
        let page = Page::Apps(&apps, &AppsQuery::default()).live(&replica(), now());
        // As many elements as with a text that has none.
        let plain = Page::Apps(&[application("a", "a", "a")], &AppsQuery::default()).live(&replica(), now());
        let empty = text.is_empty() || text.lines().next().is_none_or(str::is_empty);
        prop_assert!(empty || page.matches('<').count() == plain.matches('<').count(), "{}", page);
    }
}
