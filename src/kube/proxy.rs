//! Whether the API server is reached through a proxy, as kubectl decides it: the `proxy-url` of the kubeconfig's cluster, else
//! `HTTPS_PROXY` or `HTTP_PROXY` by the scheme of the API server's URL, unless `NO_PROXY` or its address excludes it
//! (golang.org/x/net/http/httpproxy). An API server that is the cluster's own Service is reached directly.
//!
//! kube's own proxies are not used: kube 5 compares `NO_PROXY` with the address of the proxy.

use std::net::IpAddr;

use anyhow::anyhow;
use hyper::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

/// The schemes of proxies, for messages.
const EXPECTED: &str =
    "expected http://HOST:PORT or socks5://HOST:PORT, with USER:PASSWORD@ before the host if it needs them";

/// Where a kubeconfig names its proxy, for messages.
const PROXY_URL: &str = "proxy-url of the kubeconfig";

/// The proxy that a kubeconfig names.
pub(super) fn configured(text: &str) -> anyhow::Result<Uri> {
    text.trim().parse().map_err(|_| anyhow!("{PROXY_URL}: {EXPECTED}"))
}

/// The proxy for an API server. `configured` is the proxy that its kubeconfig names.
pub(super) fn of(
    server: &Uri,
    configured: Option<&Uri>,
    variable: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<Intercept>> {
    if let Some(configured) = configured {
        return parse(PROXY_URL, &configured.to_string(), server).map(Some);
    }
    let first = |names: [&'static str; 2]| {
        names.into_iter().find_map(|name| Some((name, variable(name).filter(|value| !value.is_empty())?)))
    };
    let names =
        if server.scheme_str() == Some("http") { ["HTTP_PROXY", "http_proxy"] } else { ["HTTPS_PROXY", "https_proxy"] };
    let Some((name, proxy)) = first(names) else { return Ok(None) };
    let excluded = first(["NO_PROXY", "no_proxy"]).map_or_else(String::new, |(_, list)| list);
    if is_local(server, variable("KUBERNETES_SERVICE_HOST").as_deref()) || is_excluded(server, &excluded) {
        return Ok(None);
    }
    parse(name, &proxy, server).map(Some)
}

/// A variable of the environment.
#[expect(
    clippy::disallowed_methods,
    reason = "kubectl and all other clients read these variables, and have no options for them"
)]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn host(uri: &Uri) -> &str {
    let host = uri.host().unwrap_or_default();
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Whether a server runs on this machine, or is the Service of the cluster in which this process runs.
fn is_local(server: &Uri, service: Option<&str>) -> bool {
    let host = host(server);
    let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    host == "localhost" || is_loopback || service == Some(host) || host == "kubernetes.default.svc"
}

/// Whether `NO_PROXY` excludes a server. The list has addresses, networks, hosts (with their subdomains), domains (`.domain` and `*.domain`:
/// subdomains only) or `*`. Each except a network may have a port (`httpproxy.config.init`).
fn is_excluded(server: &Uri, list: &str) -> bool {
    let (name, port) = (host(server).to_ascii_lowercase(), port_of(server));
    let address: Option<IpAddr> = name.parse().ok();
    list.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if entry.contains('/') {
            let any = Matcher::builder().all("http://proxy").no(entry).build();
            return address.is_some() && any.intercept(server).is_none();
        }
        let (excluded, at_port) = match entry.rsplit_once(':') {
            // The other colons of an IPv6 address end no host.
            Some((excluded, at_port)) if !excluded.contains(':') || excluded.ends_with(']') => (excluded, at_port),
            _ => (entry.as_str(), ""),
        };
        if !at_port.is_empty() && at_port.parse() != Ok(port) {
            return false;
        }
        let excluded = excluded.strip_prefix('[').and_then(|excluded| excluded.strip_suffix(']')).unwrap_or(excluded);
        match (excluded.parse::<IpAddr>(), address) {
            (Ok(excluded), Some(address)) => excluded == address,
            (Ok(_), None) | (Err(_), Some(_)) => false,
            (Err(_), None) => match excluded.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(excluded)
            {
                "" => false,
                below if below.starts_with('.') => name.ends_with(below),
                excluded => name == excluded || name.strip_suffix(excluded).is_some_and(|rest| rest.ends_with('.')),
            },
        }
    })
}

fn port_of(server: &Uri) -> u16 {
    server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 })
}

/// The same URL with its port: hyper's tunnels take 443 for every server that has none.
pub(super) fn with_port(server: &Uri) -> anyhow::Result<Uri> {
    let mut parts = server.clone().into_parts();
    let authority = parts.authority.filter(|authority| authority.port().is_none());
    parts.authority = match authority {
        Some(authority) => Some(format!("{authority}:{}", port_of(server)).parse()?),
        None => server.authority().cloned(),
    };
    Ok(Uri::from_parts(parts)?)
}

/// The text may contain a password: no message shows it.
fn parse(name: &str, text: &str, server: &Uri) -> anyhow::Result<Intercept> {
    let text = text.trim();
    let (scheme, rest) = text.split_once("://").map_or(("http", text), |(scheme, rest)| (scheme, rest));
    // As Go, the last @ ends the credentials.
    let rest = match rest.rsplit_once('@') {
        Some((configured, rest)) => format!("{}@{rest}", configured.replace('@', "%40")),
        None => rest.to_owned(),
    };
    let has_port = |uri: &Uri| uri.port().is_some();
    let read = |rest: &str| Matcher::builder().all(format!("{scheme}://{rest}")).build().intercept(server);
    let is_known = |proxy: &Intercept| matches!(proxy.uri().scheme_str(), Some("http" | "socks5" | "socks5h"));
    let proxy = read(&rest).filter(is_known).ok_or_else(|| anyhow!("{name}: {EXPECTED}"))?;
    if scheme == "http" || has_port(proxy.uri()) {
        return Ok(proxy);
    }
    read(&format!("{}:1080", rest.trim_end_matches('/'))).ok_or_else(|| anyhow!("{name}: {EXPECTED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(server: &str, configured: Option<&str>, variables: &[(&str, &str)]) -> anyhow::Result<Option<String>> {
        let variable = |name: &str| Some(variables.iter().find(|(known, _)| *known == name)?.1.to_owned());
        let configured: Option<Uri> = configured.map(|configured| configured.parse().unwrap());
        Ok(of(&server.parse().unwrap(), configured.as_ref(), variable)?.map(|proxy| proxy.uri().to_string()))
    }

    const API: &str = "https://api.team.example:6443";

    #[test]
    fn proxy_is_chosen_by_the_kubeconfig_and_else_by_the_scheme() {
        let all = [("HTTPS_PROXY", "http://s:1"), ("http_proxy", "h:2"), ("NO_PROXY", "")];
        assert_eq!(proxy(API, None, &all).unwrap().as_deref(), Some("http://s:1/"));
        assert_eq!(proxy("http://api.team.example", None, &all).unwrap().as_deref(), Some("http://h:2/"));
        assert_eq!(proxy(API, None, &[("HTTP_PROXY", "h:2"), ("ALL_PROXY", "h:3")]).unwrap(), None, "as kubectl");
        // The kubeconfig's precedes, and NO_PROXY does not concern it.
        let configured = proxy(API, Some("socks5://own:1080"), &[("NO_PROXY", "*"), ("HTTPS_PROXY", "http://s:1")]);
        assert_eq!(configured.unwrap().as_deref(), Some("socks5://own:1080/"));
    }

    #[test]
    fn no_proxy_excludes_hosts_domains_networks_and_ports() {
        let is_direct = |server: &str, list: &str| {
            proxy(server, None, &[("https_proxy", "http://s:1"), ("no_proxy", list)]).unwrap().is_none()
        };
        for list in [
            "api.team.example",
            "team.example",
            ".team.example",
            "*.team.example",
            "x, *",
            "api.team.example:6443",
            "a,,team.example,",
            "API.Team.example",
            "api.team.example:",
        ] {
            assert!(is_direct(API, list), "{list}");
        }
        let others =
            ["", "other.example", "am.example", "api.team.example:443", "10.0.0.0/8", "*team.example", "**", "*:6443"];
        for list in others.into_iter().chain([".api.team.example", "*.api.team.example", "10.0.0.0/8:6443"]) {
            assert!(!is_direct(API, list), "{list}");
        }
        assert!(!is_direct("https://10.1.2.3:443", "10.0.0.0/8:443"), "a network has no port");
        for (server, list) in [
            ("https://10.1.2.3:6443", "10.0.0.0/8"),
            ("https://10.1.2.3:6443", "10.1.2.3"),
            ("https://10.1.2.3:6443", "*"),
            ("https://10.1.2.3", "10.1.2.3:443"),
            ("https://[fd00::1]:6443", "fd00::/8"),
            ("https://[fd00::1]:6443", "fd00::1"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            assert!(is_direct(server, list), "{server} {list}");
        }
        assert!(!is_direct("https://11.1.2.3", "10.0.0.0/8") && !is_direct("https://[fe00::1]", "fd00::/8"));
    }

    #[test]
    fn loopback_and_the_clusters_own_service_are_reached_directly() {
        let variables = [("HTTPS_PROXY", "http://s:1"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
        for server in [
            "https://127.0.0.1:1",
            "https://localhost:1",
            "https://[::1]:1",
            "https://10.96.0.1",
            "https://kubernetes.default.svc",
        ] {
            assert_eq!(proxy(server, None, &variables).unwrap(), None, "{server}");
        }
        assert!(proxy("https://10.96.0.2", None, &variables).unwrap().is_some());
    }

    #[test]
    fn proxy_of_another_scheme_is_refused_without_its_password() {
        for wrong in ["ftp://u:secret@h:1", "https://u:secret@h:1", "http://u:secret@h b"] {
            let error = proxy(API, None, &[("HTTPS_PROXY", wrong)]).unwrap_err().to_string();
            assert!(error.starts_with("HTTPS_PROXY: expected http://") && !error.contains("secret"), "{error}");
        }
        let found = of(&API.parse().unwrap(), None, |name| (name == "HTTPS_PROXY").then(|| "u:p%40x@h:1".to_owned()));
        let auth = found.unwrap().unwrap().basic_auth().unwrap().to_str().unwrap().to_owned();
        assert_eq!(auth, "Basic dTpwQHg=", "u:p@x");
        let at = |text: &str| of(&API.parse().unwrap(), None, |name| (name == "HTTPS_PROXY").then(|| text.to_owned()));
        let found = at(" http://u:p@x@h:1 ").unwrap().unwrap();
        assert_eq!(
            (found.uri().to_string().as_str(), found.basic_auth().unwrap().to_str().unwrap()),
            ("http://h:1/", &*auth)
        );
        assert_eq!(at("socks5://h").unwrap().unwrap().uri().to_string(), "socks5://h:1080/");
    }

    #[test]
    fn server_without_a_port_has_that_of_its_scheme() {
        let with = |server: &str| with_port(&server.parse().unwrap()).unwrap().to_string();
        assert_eq!(with("http://api.example/x"), "http://api.example:80/x");
        assert_eq!(with("https://[fd00::1]"), "https://[fd00::1]:443/");
        assert_eq!(with("https://api.example:6443"), "https://api.example:6443/");
    }
}
