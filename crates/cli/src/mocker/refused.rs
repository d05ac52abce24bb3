//! Flags of Dynamo's launcher that mean nothing here, or not yet: each with what to use instead.

const RUNTIME: &str = "belongs to Dynamo's own runtime; a mock worker speaks the engine's HTTP and ZeroMQ, and \
                       tests/clients/dynamo_worker.py registers one with Dynamo";
const ROUTER: &str = "tells Dynamo's router of a worker; the router here is the file's, of windtunnel serve: \
                      --set 'router={policy: kv_router}'";
const HOST: &str = "live workers have no tier in the host's memory; windtunnel predict has one \
                    (kv_cache.host_offload)";
const DRAFTS: &str = "speculative decoding is not scheduled token by token; its mean is \
                      --set engine.workers.aggregated.timing.draft_tokens=N and tokens_per_pass=X, with --ais-perf-model";

/// Their names, and why they are refused. One that ends in a dash is the beginning of names.
const REFUSED: [(&str, &str); 17] = [
    ("--endpoint", RUNTIME),
    ("--discovery-backend", RUNTIME),
    ("--request-plane", RUNTIME),
    ("--response-plane", RUNTIME),
    ("--event-plane", RUNTIME),
    ("--router-", ROUTER),
    ("--num-host-blocks", HOST),
    ("--host-offload-d2h-bandwidth-gbps", HOST),
    ("--host-offload-h2d-bandwidth-gbps", HOST),
    ("--ais-nextn", DRAFTS),
    ("--aic-nextn", DRAFTS),
    ("--ais-nextn-accept-rates", DRAFTS),
    ("--aic-nextn-accept-rates", DRAFTS),
    ("--ais-mtp-seed", DRAFTS),
    ("--aic-mtp-seed", DRAFTS),
    ("--speculative-config", DRAFTS),
    ("--collect-detailed-traces", "the spans of passes are --otlp-trace-passes"),
];

/// Why a flag that does not exist does not.
pub fn why(flag: &str) -> Option<&'static str> {
    let flag = flag.split('=').next().unwrap_or(flag);
    let of_name = |name: &str| flag == name || (name.ends_with('-') && flag.starts_with(name));
    REFUSED.iter().find(|(name, _)| of_name(name)).map(|(_, why)| *why)
}
