//! What a cluster offers for the word that a shell completes: contexts, namespaces, applications, drivers and executors. A shell shows no
//! errors: what cannot be read in time is not offered.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::OsStringValueParser;
use clap::{Arg, ArgMatches, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use k8s_openapi::api::core::v1::{Namespace, Node};

use super::api_server::ApiServer;
use super::bash::joined;
use super::output::block_on;
use usher_kube::client;
use usher_server::cluster::labelled::{self, SparkPod};
use usher_spark::role::Role;
use usher_spark::text::is_dns_label;

/// The longest time for which a shell waits.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The options of a command line that say where it looks.
#[derive(Clone, Default)]
struct Place {
    server: ApiServer,
    namespace: Option<String>,
    all_namespaces: bool,
    /// Whether the namespace stands before the name, as in `NAMESPACE:NAME`.
    is_prefix: bool,
}

impl Place {
    /// Of a command line as it was typed so far.
    fn of(command: &Command, words: &[OsString]) -> Place {
        // Whatever is not finished yet, or wrong, ends no reading of the options after it.
        let any = |arg: Arg| match arg.get_action().takes_values() {
            true => arg.value_parser(OsStringValueParser::new()),
            false => arg,
        };
        let command = command.clone().ignore_errors(true).mut_subcommands(|sub| sub.mut_args(any));
        let matches = command.try_get_matches_from(joined(words));
        let Some((_, matches)) = matches.as_ref().ok().and_then(ArgMatches::subcommand) else {
            return Place::default();
        };
        let text = |id: &str| {
            let word = matches.try_get_one::<OsString>(id).ok().flatten()?.to_string_lossy();
            // As they are typed, with quotes.
            Some(
                shlex::split(&word)
                    .filter(|words| words.len() == 1)
                    .map_or_else(|| word.into_owned(), |words| words.concat()),
            )
        };
        let names = ["name", "ids"].into_iter().filter_map(|id| matches.try_get_many::<OsString>(id).ok().flatten());
        let typed = names.flatten().last().map(|word| word.to_string_lossy());
        let prefix =
            typed.as_deref().and_then(|typed| typed.split_once(':')).map(|(namespace, _)| namespace.to_owned());
        let prefix = prefix.filter(|namespace| is_dns_label(namespace));
        Place {
            is_prefix: prefix.is_some(),
            server: ApiServer {
                kubeconfig: text("kubeconfig").map(PathBuf::from),
                context: text("context"),
                master: text("master"),
                ..ApiServer::default()
            },
            all_namespaces: prefix.is_none()
                && matches.try_get_one::<bool>("all_namespaces").ok().flatten() == Some(&true),
            namespace: prefix.or_else(|| text("namespace")),
        }
    }

    fn contexts(&self) -> Vec<String> {
        client::contexts(self.server.kubeconfig.as_deref()).into_iter().map(|(name, _)| name).collect()
    }

    /// Those of the cluster; those that the contexts of the kubeconfig name, if the account may not list them.
    fn namespaces(&self) -> Vec<String> {
        self.within_time(async |cluster| Ok(labelled::names::<Namespace>(&cluster.client).await?)).unwrap_or_else(
            || {
                client::contexts(self.server.kubeconfig.as_deref())
                    .into_iter()
                    .filter_map(|(_, namespace)| namespace)
                    .collect()
            },
        )
    }

    fn nodes(&self) -> Vec<String> {
        self.within_time(async |cluster| Ok(labelled::names::<Node>(&cluster.client).await?)).unwrap_or_default()
    }

    /// The Spark pods of the namespace that the command would ask; none if it would ask none.
    fn pods(&self) -> Vec<SparkPod> {
        if self.namespace.as_deref().is_some_and(|namespace| !is_dns_label(namespace)) {
            return Vec::new();
        }
        let read = self.within_time(async |cluster| {
            let namespace = self.namespace.as_ref().unwrap_or(&cluster.namespace);
            Ok(labelled::spark_pods(&cluster.client, (!self.all_namespaces).then_some(namespace)).await?)
        });
        read.unwrap_or_default()
    }

    fn within_time<T>(&self, work: impl AsyncFnOnce(client::Cluster) -> anyhow::Result<T>) -> Option<T> {
        let asked = async { work(self.server.cluster().await?).await };
        block_on(async { tokio::time::timeout(TIMEOUT, asked).await? }).ok()
    }
}

/// The command with candidates for every argument that names something of the cluster that these words name.
pub(super) fn with_candidates(command: Command, words: &[OsString]) -> Command {
    let place = Place::of(&command, words);
    command.mut_subcommands(|sub| {
        let takes_executors = sub.get_name() != "kill";
        let names_nodes = sub.get_name() == "nodes";
        sub.mut_args(|arg| of_arg(arg, place.clone(), takes_executors, names_nodes))
    })
}

fn of_arg(arg: Arg, place: Place, takes_executors: bool, names_nodes: bool) -> Arg {
    let completer = match (arg.get_id().as_str(), arg.is_positional()) {
        ("context", false) => ArgValueCompleter::new(move |word: &OsStr| plain(place.contexts(), word)),
        ("namespace" | "usher_namespace" | "dry_run_namespace" | "gang", false) => {
            ArgValueCompleter::new(move |word: &OsStr| plain(place.namespaces(), word))
        }
        ("name", true) if names_nodes => ArgValueCompleter::new(move |word: &OsStr| plain(place.nodes(), word)),
        ("name" | "ids", true) => ArgValueCompleter::new(move |word: &OsStr| {
            let typed = word.to_string_lossy();
            match typed.split_once(':').filter(|_| place.is_prefix) {
                Some((namespace, name)) => {
                    let found = named(&place.pods(), OsStr::new(name), takes_executors);
                    found.into_iter().map(|one| one.add_prefix(format!("{namespace}:"))).collect()
                }
                None => named(&place.pods(), word, takes_executors),
            }
        }),
        _ => return arg,
    };
    arg.add(completer)
}

/// Those of these words that begin with what was typed, each once, in their order.
fn plain(mut words: Vec<String>, typed: &OsStr) -> Vec<CompletionCandidate> {
    words.sort();
    words.dedup();
    let typed = typed.to_string_lossy();
    words.into_iter().filter(|word| word.starts_with(&*typed)).map(CompletionCandidate::new).collect()
}

/// The names of applications; once something was typed, also their ids, and their pods.
fn named(pods: &[SparkPod], typed: &OsStr, takes_executors: bool) -> Vec<CompletionCandidate> {
    let mut runs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for pod in pods {
        runs.entry(pod.app_name()).or_default().insert(&pod.app);
    }
    let of_application = |ids: usize| if ids == 1 { "application".to_owned() } else { format!("{ids} applications") };
    let mut found: BTreeMap<&str, String> = runs.iter().map(|(name, ids)| (*name, of_application(ids.len()))).collect();
    if !typed.is_empty() {
        for pod in pods {
            let name = pod.app_name();
            let what = if pod.role == Role::Driver { "driver" } else { "executor" };
            found.entry(&pod.app).or_insert_with(|| format!("id of {name}"));
            if pod.role == Role::Driver || takes_executors {
                found.entry(&pod.name).or_insert_with(|| format!("{what} of {name}"));
            }
        }
    }
    let typed = typed.to_string_lossy();
    let matching = found.into_iter().filter(|(word, _)| word.starts_with(&*typed));
    matching.map(|(word, what)| CompletionCandidate::new(word).help(Some(what.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, role: Role, app: &str, label: Option<&str>) -> SparkPod {
        SparkPod { name: name.into(), role, app: app.into(), label: label.map(str::to_owned) }
    }

    fn shown(pods: &[SparkPod], typed: &str, takes_executors: bool) -> Vec<(String, String)> {
        let text = |candidate: &CompletionCandidate| {
            let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
            (candidate.get_value().to_string_lossy().into_owned(), help)
        };
        named(pods, OsStr::new(typed), takes_executors).iter().map(text).collect()
    }

    #[test]
    fn names_come_first_and_ids_and_pods_once_something_is_typed() {
        let pods = [
            pod("etl-driver", Role::Driver, "spark-1", Some("etl")),
            pod("etl-exec-1", Role::Executor, "spark-1", Some("etl")),
            pod("etl-2-driver", Role::Driver, "spark-2", Some("etl")),
            pod("report-0123456789abcdef-exec-7", Role::Executor, "spark-3", None),
        ];
        let pair = |word: &str, what: &str| (word.to_owned(), what.to_owned());
        assert_eq!(shown(&pods, "", true), [pair("etl", "2 applications"), pair("report", "application")]);
        let of_etl = [
            pair("etl", "2 applications"),
            pair("etl-2-driver", "driver of etl"),
            pair("etl-driver", "driver of etl"),
            pair("etl-exec-1", "executor of etl"),
        ];
        assert_eq!(shown(&pods, "e", true), of_etl);
        assert_eq!(shown(&pods, "e", false), of_etl[..3], "kill deletes drivers only");
        assert_eq!(shown(&pods, "spark-3", true), [pair("spark-3", "id of report")]);
    }

    #[test]
    fn place_is_read_from_an_unfinished_command_line() {
        use clap::CommandFactory;
        let place_in = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Place::of(&super::super::Cli::command(), &words)
        };
        let place = place_in("spark-usher why --context east -n team-a --kubeconfig /k nig");
        assert_eq!((place.server.context.as_deref(), place.namespace.as_deref()), (Some("east"), Some("team-a")));
        assert_eq!(place.server.kubeconfig.as_deref(), Some(std::path::Path::new("/k")));
        assert!(place_in("spark-usher status -A nig").all_namespaces);
        for word in ["", "*", "N"] {
            assert!(place_in(&format!("spark-usher why {word} -A")).all_namespaces, "{word:?}");
        }
        let split = place_in("spark-usher kill --namespace = team-a --context = arn : aws : east -o bogus e");
        assert_eq!(
            (split.namespace.as_deref(), split.server.context.as_deref()),
            (Some("team-a"), Some("arn:aws:east"))
        );
        assert_eq!(
            place_in("spark-usher why -o bogus -n 'team-a' e").namespace.as_deref(),
            Some("team-a"),
            "quotes are the shell's"
        );
        let unknown = place_in("spark-usher kill -n $NS e");
        assert!(
            unknown.namespace.as_deref() == Some("$NS") && unknown.pods().is_empty(),
            "not those of another namespace"
        );
        let submit = super::super::submit_help::with_options(super::super::Cli::command());
        let words = ["spark-usher", "submit", "--kubeconfig", "/k", "--context", ""].map(OsString::from);
        assert_eq!(Place::of(&submit, &words).server.kubeconfig.as_deref(), Some(std::path::Path::new("/k")));
        for words in ["why team-b:nig -n team-a", "kill etl team-b : nig", "status -A team-b:"] {
            let place = place_in(&format!("spark-usher {words}"));
            let found = (place.namespace.as_deref(), place.is_prefix, place.all_namespaces);
            assert_eq!(found, (Some("team-b"), true, false), "{words}");
        }
        let unfinished = place_in("spark-usher kill --context=east -n");
        assert_eq!((unfinished.server.context.as_deref(), unfinished.namespace), (Some("east"), None));
        assert!(
            place_in("spark-usher").namespace.is_none() && place_in("spark-usher no-such-command").namespace.is_none()
        );
    }
}
