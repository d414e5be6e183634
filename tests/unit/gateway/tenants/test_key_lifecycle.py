"""Keys in a database: made, replaced, ended. On SQLite; the tables are tested on both."""

import pytest

from gateway.database.database import Database
from gateway.database.tenant_store import TenantStore
from gateway.settings.tenants import ApiKeySettings, LimitSettings, TenantSettings
from gateway.settings.types import Moment
from gateway.tenants.directory import UnknownKey
from gateway.tenants.key_lifecycle import KeyLifecycle, KeyProblem
from gateway.tenants.keys import HASH_PREFIX, pepper
from gateway.tenants.sql_directory import SqlDirectory
from gateway.tenants.tenant_register import TenantRegister

PEPPER = pepper(b"secret")
RULES = ApiKeySettings(
    id="new", hash=HASH_PREFIX + "0" * 64, name="robot", limits=(LimitSettings(requests=5),)
)


class KeyStage:
    """Keys of the tenant acme, and what a directory makes of them at a moment."""

    def __init__(self, store):
        self.now = 1_800_000_000.0
        self.store = store
        self.life = KeyLifecycle(store, PEPPER, lambda: self.now)

    async def opens(self, made):
        register = TenantRegister(PEPPER, lambda: self.now)
        directory = SqlDirectory(register, self.store, known_seconds_max=1.0, wall=lambda: self.now)
        await directory.refresh()
        try:
            return directory.by_key(made.text)
        except UnknownKey:
            return None


@pytest.fixture
async def stage(sqlite_tables_url, tmp_path):
    database = Database(sqlite_tables_url, tmp_path)
    store = TenantStore(database)
    async with store.change() as change:
        await change.put_tenant(TenantSettings(id="acme"))
    yield KeyStage(store)
    await database.close()


async def test_a_key_is_kept_as_a_hash_and_opens_its_tenant(stage, tmp_path):
    made = await stage.life.create("acme", RULES)
    assert (await stage.opens(made)).id == "acme"
    (stored,) = await stage.life.list_keys("acme")
    assert (stored.key.name, stored.key.hash) == ("robot", made.hash)
    assert all(made.text.encode() not in file.read_bytes() for file in tmp_path.iterdir())


async def test_after_a_rotation_both_keys_are_good_until_the_grace_period_ends(stage):
    old = await stage.life.create("acme", RULES)
    new = await stage.life.rotate(old.id, grace_seconds=60.0)
    assert await stage.opens(old)
    assert await stage.opens(new)
    stage.now += 60.0
    assert await stage.opens(old) is None
    assert await stage.opens(new)


async def test_a_rotated_key_keeps_its_rules_its_end_and_its_account(stage):
    end = Moment.at(stage.now + 1000)
    first = await stage.life.create("acme", RULES)
    await stage.life.expire(first.id, end)
    second = await stage.life.rotate(first.id)
    third = await stage.life.rotate(second.id)
    assert (await stage.opens(third)).scopes[-1].name == f"key:{first.id}"
    newest = (await stage.life.list_keys("acme", active=True))[-1]
    assert (newest.key.id, newest.key.name, newest.key.expires) == (third.id, "robot", end)


async def test_a_grace_period_prolongs_no_key(stage):
    old = await stage.life.create("acme")
    await stage.life.expire(old.id, Moment.at(stage.now + 10))
    await stage.life.rotate(old.id, grace_seconds=1000.0)
    stage.now += 10
    assert await stage.opens(old) is None


async def test_a_revoked_key_is_revoked_for_ever(stage):
    made = await stage.life.create("acme")
    await stage.life.revoke([made.id])
    assert await stage.opens(made) is None
    for again in (stage.life.rotate(made.id), stage.life.expire(made.id, Moment.at(stage.now + 100))):
        with pytest.raises(KeyProblem):
            await again
    assert await stage.life.list_keys(active=True) == []
    assert len(await stage.life.list_keys()) == 1


async def test_of_several_keys_all_are_revoked_or_none(stage):
    made = await stage.life.create("acme")
    with pytest.raises(KeyProblem, match="no key 'nobodys'"):
        await stage.life.revoke([made.id, "nobodys"])
    assert await stage.opens(made)


async def test_a_key_needs_a_tenant(stage):
    with pytest.raises(KeyProblem, match="no tenant 'nobody'"):
        await stage.life.create("nobody")
    assert await stage.life.list_keys() == []
