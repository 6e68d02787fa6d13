"""The Worker as workerd's own Python runtime calls it: what comes in and what goes back is converted as for RPC.

Mounted beside worker/'s own files.
"""

from inspect import isawaitable

import entry
from workers import python_from_rpc, python_to_rpc


class Default(entry.Default):
    async def fetch(self, request):
        result = super().fetch(python_from_rpc(request.js_object))
        return python_to_rpc(await result if isawaitable(result) else result)
