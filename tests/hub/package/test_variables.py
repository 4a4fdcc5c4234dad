"""Well-known environment variables in a package's `needs.secrets` get a warning."""

from __future__ import annotations

import pytest

from rove.hub.package.variables import kind_of, warnings_of

KINDS = {
    "loading": [
        *(
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "DYLD_INSERT_LIBRARIES",
            "PATH",
            "PYTHONPATH",
            "PYTHONSTARTUP",
            "PYTHONHOME",
        ),
        *(
            "NODE_OPTIONS",
            "PERL5LIB",
            "PERL5OPT",
            "RUBYOPT",
            "BASH_ENV",
            "ENV",
            "GIT_SSH_COMMAND",
            "HOME",
            "HTTPS_PROXY",
        ),
        *("SSL_CERT_FILE", "PIP_INDEX_URL", "UV_INDEX_URL", "ld_preload", "JAVA_TOOL_OPTIONS", "ROVE_HUB", "CLASSPATH"),
    ],
    "account": [
        *(
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AZURE_CLIENT_SECRET",
            "GITHUB_TOKEN",
            "GH_TOKEN",
        ),
        *(
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GITLAB_TOKEN",
            "NPM_TOKEN",
            "TWINE_PASSWORD",
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
        ),
        *(
            "SSH_AUTH_SOCK",
            "KUBECONFIG",
            "DOCKER_CONFIG",
            "WANDB_API_KEY",
            "DATABASE_URL",
            "VAULT_TOKEN",
            "SLACK_BOT_TOKEN",
        ),
    ],
    "provider": [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "OPENROUTER_API_KEY",
        "PRIME_API_KEY",
        "XAI_API_KEY",
    ],
    "": [
        "MY_GAME_KEY",
        "WEATHER_API_KEY",
        "SERPER_API_KEY",
        "JUDGE_TOKEN",
        "LOADER",
        "PATHFINDER_KEY",
        "GOLDEN_KEY",
        "SHELLFISH",
    ],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_the_kind_of_a_variable(kind: str, name: str):
    assert kind_of(name) == kind


def test_a_warning_lists_all_variables_of_a_kind():
    assert warnings_of(["MY_GAME_KEY"]) == []
    loading, account = warnings_of(["LD_PRELOAD", "GITHUB_TOKEN", "MY_GAME_KEY", "AWS_SECRET_ACCESS_KEY"])
    assert loading.startswith("warning: it asks for LD_PRELOAD: variables that choose which programs and libraries run")
    assert account.startswith("warning: it asks for AWS_SECRET_ACCESS_KEY, GITHUB_TOKEN: keys to accounts of yours")
