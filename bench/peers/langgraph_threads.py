"""LangGraph in one process: eight threads invoke a graph that loops; each checkpoint is committed before it goes on."""

from __future__ import annotations

import os
from typing import Any, TypedDict
from uuid import uuid4

from conversation import Wait, converse
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import ConnectionPool
from step_body import touch


class State(TypedDict):
    """The value, and how many steps are left."""

    value: dict[str, Any]
    left: int


def hand_on(state: State) -> State:
    """Do nothing, once."""
    return {"value": touch(state["value"]), "left": state["left"] - 1}


def build(saver: PostgresSaver) -> Any:
    """Compile the graph: one node, until nothing is left."""
    graph = StateGraph(State)
    graph.add_node("hand_on", hand_on)
    graph.add_edge(START, "hand_on")
    graph.add_conditional_edges("hand_on", lambda state: "hand_on" if state["left"] else END)
    return graph.compile(checkpointer=saver)


def main() -> None:
    """Answer until the input ends."""
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(os.environ["BENCH_LEDGER"], min_size=8, max_size=8, kwargs=options) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        graph = build(saver)

        def start(value: dict[str, Any], steps: int) -> Wait:
            config = {"configurable": {"thread_id": str(uuid4())}, "recursion_limit": steps + 5}
            given = {"value": value, "left": steps}
            return lambda: graph.invoke(given, config, durability="sync")["value"]

        converse(start, threads=8)


if __name__ == "__main__":
    main()
