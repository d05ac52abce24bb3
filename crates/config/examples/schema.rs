fn main() {
    println!("{}", serde_json::to_string_pretty(&windtunnel_config::schema()).unwrap());
    let t = std::time::Instant::now();
    for _ in 0..100 {
        std::hint::black_box(windtunnel_config::schema());
    }
    eprintln!("{:?}", t.elapsed() / 100);
}
