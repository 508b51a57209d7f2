"""What a fork server imports last: what is there by then stays, and the ranks' collections of garbage pass it over.

Without it every collection in a rank goes through, and copies, all that torch and transformers have made.
"""

import gc

gc.collect()
gc.freeze()
