"""PassContext and the passes, one file each: from valid loops to valid loops."""

from minitvm.runtime.faces import hand_on as _hand_on
from minitvm.transform.pass_context import PassContext as PassContext
from minitvm.transform.pass_context import PassInfo as PassInfo
from minitvm.transform.passes import ModulePass as ModulePass
from minitvm.transform.passes import Pass as Pass
from minitvm.transform.passes import PrintIR as PrintIR
from minitvm.transform.passes import Sequential as Sequential
from minitvm.transform.passes import module_pass as module_pass

_hand_on(__name__)
