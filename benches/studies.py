"""What the studies share: a prediction of a configuration, and the place of their tables in a document."""
import json
import subprocess
import sys
import tempfile


def predict(binary, config, what):
    """The prediction of a configuration, a text. `what` it is, for whoever reads that it failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(config)
        file.flush()
        done = subprocess.run([binary, "predict", file.name, "--format", "json"], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"{what}: exit code {done.returncode}")
    return json.loads(done.stdout)


def publish(tables, begin, end, document):
    """Puts tables between the two markers of a document, or prints them where there is none."""
    if not document:
        print(tables)
        return
    with open(document, encoding="utf-8") as file:
        text = file.read()
    before, rest = text.split(begin)
    after = rest.split(end)[1]
    with open(document, "w", encoding="utf-8") as file:
        file.write(f"{before}{begin}\n\n{tables}\n{end}{after}")
