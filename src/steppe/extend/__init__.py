"""For packages that add to steppe: commands, their output, pages, files and errors in the form that steppe's have.

Such a package states an entry point in the group `steppe.commands`, whose module registers commands:

    [project.entry-points."steppe.commands"]
    my-package = "my_package.commands"
"""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
