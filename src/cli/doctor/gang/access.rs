//! The permissions that the doctor's own user needs, checked before any object is created.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};

use crate::cli::doctor::finding::Finding;
use usher_core::gang::GangScheduler;
use usher_kube::client::Brief;

/// A permission: a verb on a resource of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Need {
    group: &'static str,
    resource: &'static str,
    sub: Option<&'static str>,
    verb: &'static str,
    everywhere: bool,
}

impl Need {
    const fn of(resource: &'static str, verb: &'static str) -> Need {
        Need { group: "", resource, sub: None, verb, everywhere: false }
    }

    fn shown(&self) -> String {
        let Need { group, resource, sub, verb, everywhere } = self;
        let sub = sub.map(|sub| format!("/{sub}")).unwrap_or_default();
        let dot = if group.is_empty() { "" } else { "." };
        format!("{verb} {resource}{dot}{group}{sub}{}", if *everywhere { " in all namespaces" } else { "" })
    }
}

/// Permissions that every run needs.
const NEEDS: [Need; 8] = [
    Need::of("pods", "create"),
    Need::of("pods", "list"),
    Need::of("pods", "patch"),
    Need::of("pods", "delete"),
    Need::of("configmaps", "create"),
    Need::of("configmaps", "list"),
    Need::of("configmaps", "delete"),
    Need { sub: Some("token"), ..Need::of("serviceaccounts", "create") },
];
/// Additional permissions of the scenario in which two of three executors fit.
const CAPACITY_NEEDS: [Need; 2] =
    [Need { everywhere: true, ..Need::of("nodes", "list") }, Need { everywhere: true, ..Need::of("pods", "list") }];

fn groups(scheduler: &GangScheduler, served: &[String]) -> Vec<Need> {
    let api = scheduler.apis.iter().find(|api| served.contains(&api.api_version()));
    let verbs = ["get", "delete"];
    api.into_iter().flat_map(|api| verbs.map(|verb| Need { group: api.group, ..Need::of(api.plural, verb) })).collect()
}

/// Checks all permissions. `scheduler` is that of the policy, once it is known.
pub(super) async fn check(
    client: &Client,
    namespace: &str,
    scheduler: Option<(&GangScheduler, &[String])>,
) -> Vec<Finding> {
    let mut out = Vec::new();
    let needs = match scheduler {
        None => NEEDS.to_vec(),
        Some((scheduler, served)) => groups(scheduler, served),
    };
    let lacking = lacking(client, namespace, &needs).await;
    match lacking {
        Err(error) => out.push(Finding::warning(
            format!("cannot check your permissions: {error}"),
            "the run fails if one is missing",
        )),
        Ok(lacking) if !lacking.is_empty() => out.push(Finding::failed(
            format!("you lack permissions: {}", lacking.join(", ")),
            "bind a Role or ClusterRole with these verbs in this namespace, such as admin",
        )),
        Ok(_) if scheduler.is_none() => {
            match self::lacking(client, namespace, &CAPACITY_NEEDS).await {
                Ok(lacking) if !lacking.is_empty() => out.push(Finding::warning(
                    format!(
                        "you lack permissions: {}; the scenario \"capacity for two of three\" is skipped",
                        lacking.join(", ")
                    ),
                    "bind a ClusterRole with these verbs, such as view and list on nodes",
                )),
                _ => out.push(Finding::ok("you have all permissions that are needed")),
            };
        }
        Ok(_) => {}
    }
    out
}

async fn lacking(client: &Client, namespace: &str, needs: &[Need]) -> Result<Vec<String>, String> {
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let mut lacking = Vec::new();
    for need in needs {
        let asked = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(need.group.to_owned()),
                    resource: Some(need.resource.to_owned()),
                    subresource: need.sub.map(str::to_owned),
                    verb: Some(need.verb.to_owned()),
                    namespace: (!need.everywhere).then(|| namespace.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let answer = api.create(&PostParams::default(), &asked).await.map_err(|error| Brief(&error).to_string())?;
        if !answer.status.is_some_and(|status| status.allowed) {
            lacking.push(need.shown());
        }
    }
    Ok(lacking)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_shown_in_kubectl_notation() {
        let shown: Vec<String> = NEEDS.iter().chain(&CAPACITY_NEEDS).map(Need::shown).collect();
        assert!(shown.contains(&"create serviceaccounts/token".to_owned()), "{shown:?}");
        assert!(shown.contains(&"list nodes in all namespaces".to_owned()), "{shown:?}");
        let scheduler = GangScheduler::of_kind("volcano").unwrap();
        let needs = |served: &str| groups(scheduler, &[served.to_owned()]).iter().map(Need::shown).collect::<Vec<_>>();
        assert_eq!(
            needs("scheduling.volcano.sh/v1beta1"),
            ["get podgroups.scheduling.volcano.sh", "delete podgroups.scheduling.volcano.sh"]
        );
        assert!(needs("v1").is_empty());
    }
}
