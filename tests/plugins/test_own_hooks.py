"""Plug-ins that let other plug-ins extend them through hooks of their own."""

from __future__ import annotations


def test_plugins_may_define_hooks_for_each_other(site):
    site.install(
        "host_of_routes",
        """
        from ninfer_core import hookimpl
        from ninfer_core.hookspecs import hookspec

        class Routes:
            @hookspec
            def ninfer_their_routes(self): "Offer routes."

        @hookimpl
        def ninfer_add_hookspecs(registrar):
            registrar.add_hookspecs(Routes)
        """,
    )
    site.install(
        "a_route",
        """
        from ninfer_core import hookimpl

        @hookimpl
        def ninfer_their_routes():
            return "/ping"
        """,
    )
    host = site.load()
    assert host.report("a_route").state == "registered"
    assert host.manager.hook.ninfer_their_routes() == ["/ping"]


def test_own_hooks_need_the_prefix(site):
    site.install(
        "rude",
        """
        from ninfer_core import hookimpl
        from ninfer_core.hookspecs import hookspec

        class Specs:
            @hookspec
            def routes(self): ...

        @hookimpl
        def ninfer_add_hookspecs(registrar):
            registrar.add_hookspecs(Specs)
        """,
    )
    assert "hook 'routes' must start with 'ninfer_'" in site.load().report("rude").reason
