"""LangChain's integration tests of chat models, for ChatOpenAI at a gateway. test_langchain.py runs it.

The model behind it has random weights: what asks for sense is left out, by name.
"""

import os

from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


class TestChatOpenAI(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            "model": "tiny",
            "base_url": os.environ["GATEWAY_URL"],
            "api_key": os.environ["GATEWAY_KEY"],
            "max_tokens": 40,
            "stream_usage": True,
            "max_retries": 0,
        }
