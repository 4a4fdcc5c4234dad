"""Well-known environment variables, which a package should not receive without a warning.

`needs.secrets` of a manifest names the variables that the environment gets when it runs. Most are keys of the task's own service.
The variables below are more dangerous: they choose the programs that run, or give access to accounts of the user that no task
needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LOADING = re.compile(
    r"(LD|DYLD|PYTHON|NODE|PERL|RUBY|JAVA|BASH|GIT|PIP|UV|CONDA|ROVE)(_\w+|OPT|LIB|5LIB|5OPT|PATH|HOME|STARTUP|WARNINGS|INSPECT)?"
    r"|PATH|ENV|IFS|SHELL|HOME|USER|EDITOR|VISUAL|PAGER|BROWSER|TMPDIR|CLASSPATH|JDK_JAVA_OPTIONS|_JAVA_OPTIONS|MAKEFLAGS"
    r"|(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|PROMPT_COMMAND|PS[0-4]"
)
"""Pattern of variables that choose programs, libraries or certificates."""
ACCOUNTS = re.compile(
    r"(AWS|AZURE|ARM|GOOGLE|GCP|GCLOUD|CLOUDSDK|DIGITALOCEAN|CLOUDFLARE|HEROKU|VERCEL|NETLIFY|FLY|OCI|ALICLOUD|IBMCLOUD)_\w+"
    r"|(GITHUB|GH|GITLAB|BITBUCKET|CI|NPM|NODE_AUTH|PYPI|TWINE|UV_PUBLISH|CARGO|DOCKER|KUBE|VAULT|SSH|GPG|PGP|SLACK|STRIPE)_?\w*"
    r"|(HF|HUGGING_?FACE|HUGGINGFACEHUB|WANDB|MLFLOW|COMET|NEPTUNE|RUNPOD|LAMBDA|MODAL|REPLICATE)_\w*(TOKEN|KEY|PASSWORD|SECRET)\w*"
    r"|\w*(DATABASE_URL|PGPASSWORD|MYSQL_PWD|PRIVATE_KEY)\w*|DBUS_SESSION_BUS_ADDRESS|XAUTHORITY"
)
"""Pattern of variables that give access to accounts other than accounts of model providers."""
PROVIDERS = re.compile(
    r"(OPENAI|AZURE_OPENAI|ANTHROPIC|CLAUDE|GEMINI|GOOGLE|MISTRAL|COHERE|CO|GROQ|TOGETHER|TOGETHERAI|FIREWORKS|DEEPSEEK|OPENROUTER"
    r"|PERPLEXITY|XAI|GROK|CEREBRAS|NVIDIA|DASHSCOPE|QWEN|MOONSHOT|ZAI|ZHIPUAI|AI21|ANYSCALE|PRIME|PRIME_INTELLECT)_(API_?)?(KEY|TOKEN)s?",
    re.IGNORECASE,
)
"""Pattern of keys for model providers; every request with such a key costs its owner money."""


def warnings_of(names: Iterable[str]) -> list[str]:
    """Return a warning for each kind of well-known variable among these names."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        kind = kind_of(name)
        if kind:
            kinds.setdefault(kind, []).append(name)
    return [f"warning: it asks for {', '.join(kinds[kind])}: {MEANINGS[kind]}" for kind in MEANINGS if kind in kinds]


def kind_of(name: str) -> str:
    """Return the kind of a well-known variable, a key of `MEANINGS`; "" for any other variable."""
    upper = name.upper()
    if PROVIDERS.fullmatch(upper):
        return "provider"
    if LOADING.fullmatch(upper):
        return "loading"
    return "account" if ACCOUNTS.fullmatch(upper) else ""


MEANINGS = {
    "loading": "variables that choose which programs and libraries run; no task needs them: install it only with a reason",
    "account": "keys to accounts of yours that the environment's code could use; unset them before you run it if it needs none",
    "provider": "keys of model providers, with which the environment's code can spend your money; give it a key with a limit",
}
"""Kind of variable → its meaning for the user."""
