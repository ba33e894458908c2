//! Memories, tables and stacks that are made once and used by one instance after the other, as `wasmtime serve` has them: to map
//! and unmap them for each request takes longer than to answer many.

use wasmtime::component::Component;
use wasmtime::{bail, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Result};

/// Instances at once. Each has 4 GiB of addresses a memory; what it does not touch takes no memory.
pub const INSTANCES: u32 = 1000;
/// Elements of one table. On other hosts a table may grow until the memory is full; no compiler makes one that large.
const TABLE_ELEMENTS: usize = 1 << 20;
/// Core modules in one component, at most: those of adapters are many and small.
const MODULES: u32 = 100;

/// A compiled file in an engine that has a pool for as many instances of it; without one, if it cannot have any.
pub fn load(file: &str) -> Result<(Engine, Component)> {
    let engine = Engine::new(&crate::config()?)?;
    // SAFETY: the file is one that `compile` has made, as the worker keeps it; another one's head is refused.
    let component = unsafe { Component::deserialize_file(&engine, file)? };
    pooled(file, &component).or_else(|error| {
        eprintln!("each request makes its memories anew: {error:#}");
        Ok((engine, component))
    })
}

fn pooled(file: &str, component: &Component) -> Result<(Engine, Component)> {
    let Some(needed) = component.resources_required() else { bail!("the component imports modules") };
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(INSTANCES).total_core_instances(INSTANCES * MODULES).total_stacks(INSTANCES);
    pool.max_core_instances_per_component(MODULES);
    pool.total_memories(INSTANCES * needed.num_memories).max_memories_per_module(needed.num_memories);
    pool.total_tables(INSTANCES * needed.num_tables).max_tables_per_module(needed.num_tables);
    pool.table_elements(TABLE_ELEMENTS);
    let mut config = crate::config()?;
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    let engine = Engine::new(&config)?;
    // SAFETY: as above.
    let component = unsafe { Component::deserialize_file(&engine, file)? };
    Ok((engine, component))
}
