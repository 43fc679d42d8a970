"""Checks of the runbooks: there is a page for each alert, and the binary knows all commands."""

import re
from typing import Iterator

import chart
import image_checks
from report import ROOT, Report, need_module

FOLDER = ROOT / "deploy" / "runbooks"
PARTS = ["Look", "Mend", "Prevent"]
# Commands of several words. For all others the first word is the command.
NESTED = re.compile(r"(certs|plan|bench|checkpoint) [a-z-]+")


def pages() -> dict[str, str]:
    return {p.stem: p.read_text() for p in sorted(FOLDER.glob("*.md")) if p.stem != "README"}


def rules() -> list[dict]:
    yaml = need_module("yaml")
    text = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    return yaml.safe_load(text)["groups"][0]["rules"]


def check_pages_and_alerts() -> None:
    alerts = {rule["alert"]: rule["annotations"].get("runbook_url") for rule in rules()}
    assert set(alerts) == set(pages()), f"alert or page alone: {sorted(set(alerts) ^ set(pages()))}"
    for alert, url in alerts.items():
        assert url == f"deploy/runbooks/{alert}.md", f"{alert} leads to {url}"
    index = (FOLDER / "README.md").read_text()
    for rule in rules():
        line = f"| [{rule['alert']}]({rule['alert']}.md) | {rule['labels']['severity']} |"
        assert line in index, f"README.md lacks `{line}`"


def check_pages_have_all_parts() -> None:
    for name, text in pages().items():
        assert text.startswith(f"# {name}\n"), f"{name} has another title"
        assert re.findall(r"^## (.*)$", text, re.M) == PARTS, f"{name} has other parts"
        assert len(text.splitlines()) <= 60, f"{name} is not a short page"


def check_links_lead_somewhere() -> None:
    for path in FOLDER.glob("*.md"):
        for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: no {link}"


def commands(text: str) -> Iterator[str]:
    """Returns the text in backticks or in indented blocks, from `syncline` on."""
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]
    block = [line.split(" # ")[0] for line in text.splitlines() if line.startswith("    ")]
    for code in inline + block:
        found = re.match(r"\s*(?:\$ )?syncline ([a-z].*)", code)
        if found and not found[1].startswith(("error", *"0123456789")):
            yield found[1]


def check_commands_exist() -> None:
    known: dict[str, set[str]] = {}
    seen = 0
    for name, text in pages().items() | {("README", (FOLDER / "README.md").read_text())}:
        for command in commands(text):
            nested = NESTED.match(command)
            verb = nested[0] if nested else command.split()[0]
            if verb not in known:
                known[verb] = image_checks.flags_of(verb)
            unknown = set(re.findall(r"--[a-z][a-z-]+", command)) - known[verb]
            assert not unknown, f"{name}: `syncline {verb}` does not know {sorted(unknown)}"
            seen += 1
    assert seen > 10, f"only {seen} commands found"


def check_chart_leads_to_them() -> None:
    values = {"prometheusRule": {"enabled": True, "runbookUrl": "https://wiki.example/books"}}
    found = chart.named(chart.render(values), "PrometheusRule", "")["spec"]["groups"][0]["rules"]
    for rule in found:
        url = rule["annotations"]["runbook_url"]
        assert url == f"https://wiki.example/books/{rule['alert']}.md", url


def add_checks(report: Report) -> None:
    report.check("runbooks and alerts belong together", check_pages_and_alerts)
    report.check("runbooks have all parts", check_pages_have_all_parts)
    report.check("runbooks link to pages that exist", check_links_lead_somewhere)
    report.check("runbooks use commands that exist", check_commands_exist)
    report.check("runbooks have an address in the chart", check_chart_leads_to_them)
