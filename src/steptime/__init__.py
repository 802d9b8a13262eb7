"""steptime: the arithmetic of training and serving large language models.

    import steptime as st

    st.plan("deepseek-v3", "gb200-nvl72", st.Workload(input_tokens=8192, output_tokens=1024), st.Slo(tpot=0.02, ttft=2))
    st.decode_step("deepseek-v3", "gb200-nvl72", batch=8192, context=4096, layout=st.Layout(dp=72, ep=72)).total
    st.read_prices("openai/gpt-6-sol")["kv_bytes_per_token"].interval
    st.simulate("llama-3.1-8b", "hgx-h100", st.open_loop(20, 10_000, st.Lengths(mean=512), st.Lengths(mean=128)))
    st.budget("100B@200T", st.Demand(served=200e12))

A model, a system or an engine is given by its name, or by the result of `load_model`, `load_system` or `load_engine`. By
default the engine is a real one; `engine="ideal"` leaves out all losses. Any number of a step may be an array. Every
result has a short repr, `to_dict()` and `to_json()`; a table also has `to_dataframe()` and `to_csv()`. Names are loaded
when they are first used; `__init__.pyi` lists their modules.
"""

# Nothing is imported up here, not even `typing`: the import of steptime takes no time.
_MODULES: dict[str, str] = {}


def _modules() -> dict[str, str]:
    """Return the module of each public name, from the imports of the stub file."""
    if not _MODULES:
        import ast
        from pathlib import Path

        stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
        imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
        _MODULES.update({alias.name: str(node.module) for node in imports for alias in node.names})
    return _MODULES


def __getattr__(name: str) -> object:
    if name == "__all__":
        return __dir__()

    # Private names come from tools such as copy and pickle, which need a plain AttributeError.
    if name.startswith("_"):
        raise AttributeError(f"module 'steptime' has no attribute {name!r}")
    if name not in _modules():
        from steptime.errors import did_you_mean

        near = " or ".join(did_you_mean(name, _modules(), cutoff=0.65))
        raise AttributeError(f"module 'steptime' has no attribute {name!r}" + (f"; did you mean {near}?" if near else ""))
    from importlib import import_module

    module = _modules()[name]
    attribute = import_module(f"steptime.{name}") if module == "steptime" else getattr(import_module(module), name)
    globals()[name] = attribute
    return attribute


def __dir__() -> list[str]:
    return sorted(_modules())
