# What a contributor runs. `just --list` shows the recipes; each is one command, so none of them needs just.

# Everything that must pass before a change lands
ci:
    .ci/run

# All tests; KUBEBUILDER_ASSETS=FOLDER runs the end-to-end tests on a real API server
test:
    tests/run

# The unit tests; `just unit admission` runs those of one module
unit *FILTER:
    cargo test --workspace --lib --bins --quiet -- {{FILTER}}

# Formatting, lints, documentation, licenses
lint:
    .ci/lint

# The webhook and the controller on an in-memory Kubernetes API
demo *ARGS:
    cargo run -- demo {{ARGS}}

# Writes what is generated: the tables of docs/, the chart's README, schema and admission policies
generate:
    cargo build --quiet
    UPDATE_DOCS=1 cargo test --quiet --test it reasons -- --test-threads=1
    python3 tests/chart.py --usher target/debug/spark-usher --update

# A benchmark: admission, attack, connections, endpoint, metrics, recovery, scale, store, submit or sync
bench NAME:
    cargo bench --bench {{NAME}}

# Histories of a simulated cluster; each prints its seed where it fails
simulate SEEDS="10000":
    SEEDS={{SEEDS}} cargo test --release --test sim controller::run::histories

# Mutation tests of the modules that decide: admission, gang, ownership
mutants *ARGS:
    cargo mutants {{ARGS}}

# The program as it is in the image
release:
    cargo build --release --no-default-features --locked --bin spark-usher

# The image, for this machine's architecture
image TAG="spark-usher":
    docker build -t {{TAG}} .
