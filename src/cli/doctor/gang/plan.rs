//! The scenarios that a namespace's policy and its scheduler support, and the expected result of each.

use std::collections::BTreeMap;

use usher_core::annotations::{self, Override};
use usher_core::gang::{GangScheduler, GroupKeyField, Membership, Shape};
use usher_core::policy::Policy;
use usher_core::policy::overrides::Effective;
use usher_core::snapshot::GroupApi;

/// Number of members of each gang.
pub(super) const MEMBERS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scenario {
    /// Two executors wait, the third one starts all of them.
    Together,
    /// The PodGroup is created after its pods.
    Late,
    /// Two of three executors wait, and the count is lowered to two.
    Lowered,
    /// Two of three fit: none may start.
    Capacity,
    /// Two of three that run are lost, and one is replaced: it starts alone.
    Replaced,
    /// The driver is deleted.
    Driver,
}

impl Scenario {
    pub(super) const ALL: [Scenario; 6] = [
        Scenario::Together,
        Scenario::Late,
        Scenario::Lowered,
        Scenario::Capacity,
        Scenario::Replaced,
        Scenario::Driver,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Scenario::Together => "two wait, the third starts all",
            Scenario::Late => "the PodGroup is created late",
            Scenario::Lowered => "the PodGroup's count is lowered",
            Scenario::Capacity => "capacity for two of three",
            Scenario::Replaced => "two are lost, one is replaced",
            Scenario::Driver => "the driver is deleted",
        }
    }
}

/// The part of the namespace's policy that matters here.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) policy: String,
    pub(super) scheduler: &'static GangScheduler,
    /// The PodGroup API that the cluster serves.
    pub(super) api: Option<&'static GroupApi>,
    pub(super) shape: Shape,
    pub(super) membership: Membership,
    /// Whether a gang of [`MEMBERS`] can be requested, or why not.
    pub(super) sized: Result<(), String>,
    /// Whether its count can be lowered from the driver, or why not.
    pub(super) lowers: Result<(), String>,
    pub(super) node_pool: BTreeMap<String, String>,
}

impl Setup {
    /// From what the webhook applied to a driver. `known` is that policy, and its result for the driver's annotations.
    pub(super) fn of(
        policy: &str,
        scheduler: &'static GangScheduler,
        known: Option<(&Policy, &Effective)>,
        served: &[String],
    ) -> Setup {
        let (sized, lowers) = match known {
            Some((known, effective)) => (sized(known, effective), lowers(known)),
            // Without the policy file both are assumed to work.
            None => (Ok(()), Ok(())),
        };
        Setup {
            policy: policy.to_owned(),
            scheduler,
            api: scheduler.apis.iter().find(|api| served.contains(&api.api_version())),
            shape: known.map_or(scheduler.default_shape(), |(_, effective)| effective.shape),
            membership: known.map_or(Membership::PodGroup, |(known, _)| known.gang.membership),
            sized,
            lowers,
            node_pool: known.map(|(known, _)| known.node_pool.clone()).unwrap_or_default(),
        }
    }

    /// Reports whether spark-usher creates a PodGroup for the executors.
    pub(super) fn has_group(&self) -> bool {
        !self.scheduler.apis.is_empty() && self.membership == Membership::PodGroup && self.shape == Shape::Executors
    }

    /// Reports whether executors carry the gang's size, which the webhook must know when they are created.
    pub(super) fn numbers_on_pods(&self) -> bool {
        self.shape == Shape::Executors && !self.has_group() && self.scheduler.group_key != GroupKeyField::None
    }

    /// Reports whether a scenario can run here, or why not.
    pub(super) fn applies(&self, scenario: Scenario) -> Result<(), String> {
        if scenario == Scenario::Driver {
            return Ok(());
        }
        let kind = self.scheduler.kind;
        match (self.shape, kind) {
            (Shape::Pods, "kai") => {
                return Err("KAI's pod grouper creates the PodGroups, with a minimum of one member".to_owned());
            }
            (Shape::Pods, "kueue") => {
                return Err(format!(
                    "under policy {} Kueue admits each pod separately (gang.shape: executors creates groups of a fixed size)",
                    self.policy
                ));
            }
            (Shape::Pods, _) => return Err(format!("policy {} creates no gangs", self.policy)),
            (Shape::App, _) => {
                return Err(
                    "with gang.shape: app the application waits at its queue, and executors do not wait for each other"
                        .to_owned(),
                );
            }
            (Shape::Executors, "yunikorn") => {
                return Err(
                    "YuniKorn reserves resources with placeholder pods, which executors replace one by one".to_owned()
                );
            }
            (Shape::Executors, _) => {}
        }
        self.sized.clone()?;
        match scenario {
            Scenario::Late | Scenario::Lowered if self.scheduler.apis.is_empty() => {
                Err(format!("spark-usher creates no PodGroup for {kind}"))
            }
            Scenario::Late | Scenario::Lowered if !self.has_group() => {
                Err("with gang.membership: annotations the count is on the pods, and there is no PodGroup".to_owned())
            }
            Scenario::Lowered if self.api.is_some_and(|api| !api.count_mutable) => Err(format!(
                "the count of PodGroups of {} cannot be changed",
                self.api.map(GroupApi::api_version).unwrap_or_default()
            )),
            Scenario::Lowered => self.lowers.clone(),
            Scenario::Capacity if kind == "kueue" => {
                Err("Kueue admits by quota, not by the capacity of nodes".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// What to check when gangs do not work with this scheduler.
    pub(super) fn gang_plugin(&self) -> &'static str {
        match self.scheduler.kind {
            "volcano" | "kube-batch" => "the gang plugin in the scheduler's configuration (tiers, plugins)",
            "coscheduling" => "the Coscheduling plugin in the profile of KubeSchedulerConfiguration",
            "koordinator" => "the Coscheduling plugin of koord-scheduler",
            "native" => "the feature gates GenericWorkload and GangScheduling of kube-apiserver and kube-scheduler",
            "kueue" => {
                "the pod integration in Kueue's configuration, and the order of webhooks (spark-usher before Kueue)"
            }
            _ => "the scheduler's configuration",
        }
    }
}

/// Checks that the doctor's driver, which requests [`MEMBERS`] by annotation and configuration, gets a gang of that size.
fn sized(policy: &Policy, effective: &Effective) -> Result<(), String> {
    let name = &policy.name;
    match (effective.min_member, policy.gang.read_spark_conf) {
        (Some(count), _) if count == MEMBERS => Ok(()),
        (None, true) => Ok(()),
        // The configuration caps the policy's count.
        (Some(count), true) if count > MEMBERS => Ok(()),
        (Some(count), _) => Err(format!(
            "policy {name} requires gangs of {count} and does not allow the override min-member: expected {MEMBERS}"
        )),
        (None, false) => Err(format!(
            "policy {name} neither allows the override min-member ({}) nor reads Spark's configuration: the gang's size is unknown",
            annotations::MIN_MEMBER
        )),
    }
}

fn lowers(policy: &Policy) -> Result<(), String> {
    if policy.overrides.contains(&Override::MinMember) {
        return Ok(());
    }
    Err(format!(
        "policy {} does not allow the override min-member ({}), with which doctor lowers the count",
        policy.name,
        annotations::MIN_MEMBER
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::annotations::Overrides;
    use usher_core::policy::overrides::{Source, resolve};

    fn setup(policy: &str, served: &str) -> Setup {
        let config = usher_config::from_text(&format!(
            "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{{name: p, {policy}}}]"
        ))
        .unwrap();
        let policy = &config.policies.listed()[0];
        let driver = Overrides::read(|key| (key == annotations::MIN_MEMBER).then_some("3"));
        let none = Overrides::default();
        let effective = resolve(policy, [(Source::Pod, &none), (Source::Driver, &driver), (Source::Namespace, &none)]);
        Setup::of("p", policy.scheduler.gang_scheduler, Some((policy, &effective)), &[served.to_owned()])
    }

    fn applicable(setup: &Setup) -> Vec<Scenario> {
        Scenario::ALL.into_iter().filter(|scenario| setup.applies(*scenario).is_ok()).collect()
    }

    #[test]
    fn schedulers_with_podgroups_support_all_scenarios() {
        for (kind, served) in [
            ("volcano", "scheduling.volcano.sh/v1beta1"),
            ("kube-batch", "scheduling.incubator.k8s.io/v1alpha1"),
            ("coscheduling", "scheduling.x-k8s.io/v1alpha1"),
            ("koordinator", "scheduling.sigs.k8s.io/v1alpha1"),
            ("native", "scheduling.k8s.io/v1beta1"),
        ] {
            let setup = setup(&format!("scheduler: {{type: {kind}}}"), served);
            assert_eq!(applicable(&setup), Scenario::ALL, "{kind}");
            assert!(setup.has_group(), "{kind}");
        }
    }

    #[test]
    fn setups_without_mutable_podgroup_support_fewer_scenarios() {
        let only_driver = [
            "scheduler: {type: yunikorn}",
            "scheduler: {type: kai}",
            "scheduler: {type: kueue}, queue: q",
            "scheduler: {type: volcano}, gang: {enabled: false}",
            "scheduler: {type: volcano}, gang: {shape: app}",
        ];
        for policy in only_driver {
            assert_eq!(applicable(&setup(policy, "scheduling.volcano.sh/v1beta1")), [Scenario::Driver], "{policy}");
        }
        let fixed = setup("scheduler: {type: kueue}, queue: q, gang: {shape: executors}", "");
        assert_eq!(applicable(&fixed), [Scenario::Together, Scenario::Replaced, Scenario::Driver]);
        assert!(fixed.numbers_on_pods() && !fixed.has_group());
        let annotations = setup("scheduler: {type: koordinator}, gang: {membership: annotations}", "");
        let all = [Scenario::Together, Scenario::Capacity, Scenario::Replaced, Scenario::Driver];
        assert_eq!(applicable(&annotations), all);
        let old = setup("scheduler: {type: native}", "scheduling.k8s.io/v1alpha2");
        assert!(old.applies(Scenario::Lowered).unwrap_err().contains("scheduling.k8s.io/v1alpha2 cannot be changed"));
    }

    #[test]
    fn policy_without_min_member_override_reports_why_scenarios_do_not_apply() {
        let with =
            |rest: &str| setup(&format!("scheduler: {{type: volcano}}, {rest}"), "scheduling.volcano.sh/v1beta1");
        let without_override = with("overrides: []");
        assert!(without_override.applies(Scenario::Together).is_ok(), "the configuration contains the size");
        assert!(
            without_override.applies(Scenario::Lowered).unwrap_err().contains("does not allow the override min-member")
        );
        let without_conf = with("overrides: [], gang: {readSparkConf: false}");
        assert!(without_conf.applies(Scenario::Together).unwrap_err().contains("the gang's size is unknown"));
        let two = with("overrides: [], gang: {minMember: 2}");
        assert!(two.applies(Scenario::Together).unwrap_err().contains("gangs of 2"));
    }
}
