"""Public names of steptime and their modules, for `__init__.py` and for type checkers."""

from steptime import blackboard as blackboard
from steptime.catalog.hardware_loading import load_system as load_system
from steptime.catalog.hardware_loading import vary as vary
from steptime.catalog.hardware_loading import with_rent as with_rent
from steptime.errors import InputError as InputError
from steptime.hardware.system import System as System
from steptime.lecture.pair_roofline import roofline as roofline
from steptime.models.kv_compression import with_techniques as with_techniques
from steptime.models.model import Model as Model
from steptime.models.model_loading import load_model as load_model
from steptime.physics.chip_memory import Memory as Memory
from steptime.physics.chip_memory import memory_per_chip as memory_per_chip
from steptime.physics.engine import Engine as Engine
from steptime.physics.engine import load_engine as load_engine
from steptime.physics.layout import Layout as Layout
from steptime.physics.step import (
    Step as Step,
)
from steptime.physics.step import (
    decode_step as decode_step,
)
from steptime.physics.step import (
    mixed_step as mixed_step,
)
from steptime.physics.step import (
    prefill_step as prefill_step,
)
from steptime.physics.uncertainty import step_range as step_range
from steptime.planning.model_fleet import plan_fleet as plan_fleet
from steptime.planning.model_fleet import read_fleet as read_fleet
from steptime.planning.plan_replay import replay as replay
from steptime.planning.plan_result import Plan as Plan
from steptime.planning.planner import plan as plan
from steptime.planning.session_plan import plan_sessions as plan_sessions
from steptime.pricing.market import Market as Market
from steptime.pricing.market import survey_prices as survey_prices
from steptime.pricing.price_estimate import Reading as Reading
from steptime.pricing.price_inversion import PriceReading as PriceReading
from steptime.pricing.price_inversion import read_prices as read_prices
from steptime.pricing.price_list import PriceList as PriceList
from steptime.pricing.price_proposal import propose_prices as propose_prices
from steptime.pricing.self_hosting import compare_self_hosting as compare_self_hosting
from steptime.questions.image_cost import image_cost as image_cost
from steptime.questions.image_cost import with_images as with_images
from steptime.questions.registry import ask as ask
from steptime.scaling.compute_optimal import equivalent_dense as equivalent_dense
from steptime.scaling.lifetime_compute import Demand as Demand
from steptime.scaling.lifetime_compute import Target as Target
from steptime.scaling.lifetime_compute import read_target as read_target
from steptime.scaling.model_sizing import Budget as Budget
from steptime.scaling.model_sizing import budget as budget
from steptime.scaling.moe_vs_dense import moe_board as moe_board
from steptime.scaling.rl_step import rl_step as rl_step
from steptime.scaling.scaling_laws import Law as Law
from steptime.scaling.scaling_laws import load_law as load_law
from steptime.scaling.sizing_on_system import Serving as Serving
from steptime.simulation.scheduling_policy import Policy as Policy
from steptime.simulation.simulation_result import Simulation as Simulation
from steptime.simulation.simulator import simulate as simulate
from steptime.simulation.step_predictor import compile_predictor as compile_predictor
from steptime.sweeps.context_limit import context_walls as context_walls
from steptime.sweeps.design import design as design
from steptime.sweeps.point_grid import in_blocks as in_blocks
from steptime.sweeps.ranking import compare as compare
from steptime.sweeps.sensitivity import sensitivity as sensitivity
from steptime.sweeps.sweep import sweep as sweep
from steptime.training.training_callback import TrainingCallback as TrainingCallback
from steptime.training.training_job import TrainingLayout as TrainingLayout
from steptime.training.training_planner import Training as Training
from steptime.training.training_planner import TrainingStep as TrainingStep
from steptime.training.training_planner import train as train
from steptime.training.training_planner import training_step as training_step
from steptime.training.training_runs import Phase as Phase
from steptime.training.training_runs import Reliability as Reliability
from steptime.training.training_stack import training_engine as training_engine
from steptime.validation.user_calibration import load_anchor as load_anchor
from steptime.validation.validate_api import calibrate as calibrate
from steptime.validation.validate_api import validate as validate
from steptime.workload.sessions import Sessions as Sessions
from steptime.workload.trace_files import read_trace as read_trace
from steptime.workload.traffic import (
    Lengths as Lengths,
)
from steptime.workload.traffic import (
    Traffic as Traffic,
)
from steptime.workload.traffic import (
    closed_loop as closed_loop,
)
from steptime.workload.traffic import (
    open_loop as open_loop,
)
from steptime.workload.workload import Slo as Slo
from steptime.workload.workload import Workload as Workload
