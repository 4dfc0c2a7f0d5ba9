"""A real browser for the tests of pages; where there is none, they skip and say so."""

import shutil
from dataclasses import dataclass, field

import pytest


@dataclass
class View:
    """A window of the browser, with what went wrong in it and what it asked the network for."""

    page: object
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def widths(self):
        """Return how wide the content and the window are."""
        return self.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install 'mopbt[browser]'"
    )
    chromium = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if chromium is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield launched
        launched.close()


@pytest.fixture
def open_view(browser):
    """Return a function that opens a window; after the test none may have had an error."""
    views, contexts = [], []

    def open_one(width=1280, height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        view = View(context.new_page())
        view.page.set_default_timeout(15_000)
        view.page.on(
            "console",
            lambda m: view.problems.append(m.text) if m.type in ("error", "warning") else None,
        )
        view.page.on("pageerror", lambda error: view.problems.append(str(error)))
        view.page.on("request", lambda request: view.requests.append(request.url))
        views.append(view)
        return view

    yield open_one
    problems = [problem for view in views for problem in view.problems]
    for context in contexts:
        context.close()
    assert not problems, problems
