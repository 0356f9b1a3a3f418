-- P7: the one clock. Only a test's database replaces this function. PL/pgSQL, as in key_v1: a SQL function that its caller cannot read in place (P42) costs three
-- times as much a call.
CREATE FUNCTION safepoint.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE
SET search_path = safepoint, pg_temp AS $$ BEGIN RETURN clock_timestamp(); END $$;
